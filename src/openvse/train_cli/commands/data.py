"""``openvse data``: checks and counts data, and imports features."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import FeatureStorePath, Json, Stored, argument, option, print_json
from openvse.cli.progress import bar, counted, going_on, note, voice, warn
from openvse.errors import OpenVSEError
from openvse.media.names import escaped
from openvse.pipeline import tell_skipped
from openvse.train_cli.completion import complete_data_set

if TYPE_CHECKING:
    from openvse.datasets.check import Finding
    from openvse.output.table import Table


CASES = 5
"""The number of examples printed for a finding."""

data = typer.Typer(help="Check and count data, and import features.", no_args_is_help=True)
app.add_typer(data, name="data", rich_help_panel="Data")


@data.command()
def check(
    source: Annotated[
        str,
        argument(
            "Your own folder or file, or NAME:ROOT such as flickr8k:/data/f8k. 'openvse list data' lists names.",
            metavar="DATA",
            complete=complete_data_set,
        ),
    ],
    quick: Annotated[
        bool,
        option("Do not decode the images of your own data. For published data, skip files and features.", "--quick"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check data and count them: broken or duplicate images, captions, leakage, the completeness of published data.

    Lines marked WRONG name faults, and the exit code is then 1. Lines marked "note" name facts that are not faults.
    """
    from openvse.datasets import DATASETS
    from openvse.datasets.check import check_data
    from openvse.datasets.registry import parse_source

    name, place = parse_source(source)
    if not name and source in DATASETS and not place.exists():
        raise OpenVSEError(f"{source} is the name of a data set: give {source}:FOLDER, the folder with its files")
    with bar() as progress:
        findings = check_data(source, quick=quick, allow_outside=voice.allow_outside, progress=progress.show)
    counts, complete = counts_of(source), all(finding.ok for finding in findings)
    if as_json:
        reports = [{"mark": finding.mark.lower(), "text": finding.text, "cases": finding.cases} for finding in findings]
        result = {"data": name or source, "root": str(place), "complete": complete, "findings": reports}
        print_json("data check", {**result, "splits": [] if counts is None else counts.to_json()})
        raise typer.Exit(0 if complete else 1)
    for finding in findings:
        show_finding(finding)
    if counts is not None:
        typer.echo(f"\n{counts.to_text().rstrip()}\n")
    where = escaped(f"{name} at {place}" if name else source)
    if complete:
        typer.echo(f"{where} is complete" if DATASETS.facts(name) else f"{where}: nothing that harms training")
        return
    harm = f" is not complete: see the lines marked WRONG, and openvse list data {name}"
    typer.echo(where + (harm if DATASETS.facts(name) else ": the lines marked WRONG harm training"), err=True)
    raise typer.Exit(1)


def counts_of(source: str) -> Table | None:
    """Return items, sentences, words and vocabulary of each split, or None if the data do not open."""
    from openvse.datasets import open_corpus
    from openvse.datasets.check import data_statistics

    try:
        corpus = open_corpus(source, require_images=False, allow_outside=True, merge_captions=False)
    except OpenVSEError:  # which is one of the findings
        return None
    return data_statistics(corpus)


def show_finding(finding: Finding) -> None:
    """Print a finding and its first cases. On a terminal, lines are broken between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = textwrap.wrap(finding.text, columns - 8, break_long_words=False) if columns else [finding.text]
    typer.echo(f"{finding.mark:>5}  {f'{chr(10)}       '.join(lines)}")
    for case in finding.cases[:CASES]:
        typer.echo(f"         {case}")
    if (more := len(finding.cases) - CASES) > 0:
        typer.echo(f"         ... and {more:,} more (--json lists all)")


Match: TypeAlias = Annotated[
    str | None,
    option("A data set, as for 'openvse train'. Only features of its images are kept, under its names for them."),
]


@data.command("import")
@going_on("the imported features are in the store: run the same command again to continue")
def import_features(
    source: Annotated[
        Path, argument("The features: a .tsv, .npy or .h5 file, or a folder of .tsv, .npz or .npy files.")
    ],
    out: FeatureStorePath,
    kind: Annotated[
        str | None, option("Format: tsv, npz, npy or hdf5. Default: recognised by the name of the file.")
    ] = None,
    match: Match = None,
    ids: Annotated[Path | None, option("Text file with one id per line, for arrays without ids.")] = None,
    made_by: Annotated[
        str | None, option("Feature extractor, stored with the features. Default: imported:FOLDER.")
    ] = None,
    dtype: Stored = "float16",
    boxes: Annotated[bool, option("Keep the boxes of regions, if the source has boxes.", "--boxes/--no-boxes")] = True,
) -> None:
    """Import the features that other tools made into a feature store. A second run adds only new ones."""
    from openvse.datasets import open_corpus
    from openvse.features.entries import import_features as run
    from openvse.features.store import FeatureStore

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
    note(f"to train on them: data.features={out} image.encoder='{{name: precomputed, feature_dim: {store.dim}}}'")
