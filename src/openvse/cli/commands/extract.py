"""``openvse extract``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from openvse.cli.app import app
from openvse.cli.options import Device
from openvse.cli.stopping import going_on
from openvse.errors import DataError


@app.command()
@going_on("what was extracted is in the store; run the same command again to go on")
def extract(
    backbone: Annotated[
        str,
        typer.Argument(help="A backbone: efficientnet_lite0, transformers_vision, frames (clips), ..."),
    ],
    data: Annotated[str, typer.Argument(help="A folder, a CSV file, or NAME:ROOT.")],
    store: Annotated[Path, typer.Argument(help="The feature store; it is created, or added to.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            help="The backbone's options, such as model=facebook/dinov2-small or backbone.image_size=128"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images a batch holds.")] = 32,
    workers: Annotated[int, typer.Option(min=1, help="Threads that decode images.")] = 1,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Type of stored values.")] = "float16",
    check: Annotated[
        bool, typer.Option("--check", help="Compare a store that is there with its checksums before.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Store the local features of images; a second run adds only what is new."""
    from openvse.assembly import build_part
    from openvse.backbones import BACKBONES
    from openvse.cli.progress import bar, counted, warn
    from openvse.datasets import open_corpus
    from openvse.features import FeatureStore, extract_features
    from openvse.specs import Part, apply_override, parse_override

    given: dict[str, Any] = {}
    for path, value in map(parse_override, options or []):
        given = apply_override(given, path, value)
    built = build_part(BACKBONES, Part(**{**given, "name": backbone}), backbone, {"assets": None})
    corpus = open_corpus(data)
    if check and store.is_dir():
        FeatureStore.open(store, built.fingerprint, check=True)
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    with bar() as progress:
        show = counted(progress, "extracting")
        report = extract_features(
            built,
            images,
            store,
            batch_size=batch_size,
            num_workers=workers,
            dtype=dtype,
            device=device,
            progress=lambda state: show(state.done, state.total, state.images_per_s),
        )
    for problem in (*corpus.problems, *(f"skipped {reason}" for _, reason in report.failed)):
        warn(problem)
    typer.echo(
        f"{store}: {report.done} new, {report.skipped_existing} were there, {len(report.failed)} unreadable, "
        f"{report.images_per_s:.1f} images/s"
    )
    if report.failed and not report.done and not report.skipped_existing:
        raise DataError(f"{data}: not one image can be read: check the files named above")
