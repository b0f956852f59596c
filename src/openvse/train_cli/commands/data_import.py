"""``openvse data import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from openvse.cli.options import FeatureStorePath, Stored
from openvse.cli.stopping import going_on
from openvse.train_cli.commands.data import data

Match: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A data set, as for 'openvse train': only the features of its images are kept, under its names for them."
    ),
]


@data.command("import")
@going_on("what was imported is in the store; run the same command again to continue")
def import_features(
    source: Annotated[
        Path,
        typer.Argument(
            help="The features: a .tsv, .npy or .h5 file, or a folder of .tsv, .npz or .npy files."
        ),
    ],
    out: FeatureStorePath,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Format of the source: tsv, npz, npy or hdf5. Default: recognised by the name of the file."
        ),
    ] = None,
    match: Match = None,
    ids: Annotated[
        Path | None, typer.Option(help="Text file with one id per line, for arrays without ids.")
    ] = None,
    made_by: Annotated[
        str | None,
        typer.Option(help="Name of what made the features, which the store keeps. Default: imported:FOLDER."),
    ] = None,
    dtype: Stored = "float16",
    boxes: Annotated[
        bool, typer.Option("--boxes/--no-boxes", help="Keep the boxes of regions, if the source has boxes.")
    ] = True,
) -> None:
    """Import the features that other tools made into a feature store. A second run only adds what is new."""
    from openvse.cli.progress import bar, counted, warn
    from openvse.datasets import open_corpus
    from openvse.features import FeatureStore
    from openvse.features import import_features as run
    from openvse.pipeline import tell_skipped

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
    tell_skipped(report.failed)
    if report.unmatched:
        warn(f"{len(report.unmatched)} item(s) are not images of {match} (first: {report.unmatched[0]!r})")
    store = FeatureStore(out)
    typer.echo(
        f"{out}: {report.done} new, {report.existing} were there, {len(report.failed)} skipped; width {store.dim}, "
        f"{'with' if store.has_boxes else 'without'} boxes, made by {store.fingerprint!r}"
    )
