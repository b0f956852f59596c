"""``openvse data import``, and ``openvse data convert``, as it was called before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from openvse.cli.commands.data import data
from openvse.cli.options import Quiet
from openvse.cli.stopping import going_on


@data.command("convert", hidden=True)
@data.command("import")
@going_on("what was imported is in the store; run the same command again to go on")
def import_features(
    source: Annotated[
        Path,
        typer.Argument(help="A .tsv, .npy or .h5 file, or a folder of .tsv, .npz or .npy files."),
    ],
    out: Annotated[Path, typer.Argument(help="The feature store; it is created, or added to.")],
    kind: Annotated[
        str | None,
        typer.Option(
            help="Format of the source: tsv, npz, npy or hdf5; recognised by its name if not given."
        ),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            help="A data set (as for train): keep only the features of its images, and name them as it does."
        ),
    ] = None,
    ids: Annotated[
        Path | None, typer.Option(help="A text file with one id on each line, for arrays without ids.")
    ] = None,
    made_by: Annotated[
        str | None,
        typer.Option(help="What made the features, which the store remembers; by default imported:FOLDER."),
    ] = None,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Type of stored values.")] = "float16",
    boxes: Annotated[
        bool, typer.Option("--boxes/--no-boxes", help="Keep the boxes, if the source has any.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Import features that other tools made into a feature store; an interrupted run can be continued."""
    from openvse.cli.progress import bar, counted, warn
    from openvse.datasets import open_corpus
    from openvse.features import FeatureStore
    from openvse.features import import_features as run

    image_ids = open_corpus(match, require_images=False, allow_outside=True).image_ids if match else None
    with bar() as progress:
        show = counted(progress, "importing", "items")
        report = run(
            source,
            out,
            kind=kind,
            ids=ids,
            image_ids=image_ids,
            fingerprint=made_by,
            dtype=dtype,
            boxes=boxes,
            progress=lambda state: show(state.seen, None, state.seen / max(state.seconds, 1e-9)),
        )
    for place, reason in report.failed:
        warn(f"skipped {place}: {reason}")
    if report.unmatched:
        warn(f"{len(report.unmatched)} item(s) are no images of {match} (first: {report.unmatched[0]!r})")
    store = FeatureStore.open(out)
    typer.echo(
        f"{out}: {report.done} new, {report.existing} were there, {len(report.failed)} skipped; width {store.dim}, "
        f"{'with' if store.has_boxes else 'without'} boxes, made by {store.fingerprint!r}"
    )
