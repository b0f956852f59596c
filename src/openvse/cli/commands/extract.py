"""``openvse extract``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from openvse.cli.app import app
from openvse.errors import DataError, RecipeError


@app.command()
def extract(
    encoder: Annotated[
        str, typer.Argument(help="An image encoder: efficientnet_lite0, transformers_vision, ...")
    ],
    data: Annotated[str, typer.Argument(help="A folder, a CSV file, or NAME:ROOT.")],
    store: Annotated[Path, typer.Argument(help="The feature store: made, or added to.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(help="The encoder's options, for instance model=facebook/dinov2-small"),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures at a time.")] = 32,
    workers: Annotated[int, typer.Option(min=1, help="Threads that decode pictures.")] = 1,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Of the numbers.")] = "float16",
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
) -> None:
    """Store the local features of pictures; run again, it does only what is new."""
    from openvse.build import build_part
    from openvse.cli.progress import console, counted
    from openvse.data import open_corpus
    from openvse.encoders import IMAGE_ENCODERS
    from openvse.extraction import extract_features
    from openvse.recipe import Part

    part = Part.model_validate({"name": encoder, **parse_options(options or [])})
    # The joint width concerns the projection alone, which extraction does not use.
    built = build_part(IMAGE_ENCODERS, part, encoder, {"embed_dim": 1, "assets": None})
    corpus = open_corpus(data)
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    with counted("extracting") as show:
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
    for path, reason in report.failed:
        console.print(f"[yellow]skipped:[/] {path}: {reason}", highlight=False)
    typer.echo(
        f"{store}: {report.done} new, {report.skipped_existing} were there, {len(report.failed)} unreadable, "
        f"{report.images_per_s:.1f} images/s"
    )
    if report.failed and not report.done and not report.skipped_existing:
        raise DataError(f"{data}: not one picture could be read")


def parse_options(options: list[str]) -> dict[str, Any]:
    """Read ``key=value`` pairs, the values as YAML."""
    import yaml

    parsed: dict[str, Any] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise RecipeError(f"encoder option {option!r} is not of the form key=value")
        parsed[key] = yaml.safe_load(value)
    return parsed
