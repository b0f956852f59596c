"""``openvse data``: checks and counts data."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Json
from openvse.errors import OpenVSEError
from openvse.media.names import escaped
from openvse.train_cli.completion import complete_data_set

if TYPE_CHECKING:
    from openvse.datasets import Finding
    from openvse.output.table import Table


CASES = 5
"""Examples of a finding that are printed."""

data = typer.Typer(help="Check and count data, and import features.", no_args_is_help=True)
app.add_typer(data, name="data", rich_help_panel="Data")


@data.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Your own folder or file, or NAME:ROOT such as flickr8k:/data/f8k. 'openvse list data' lists names.",
            autocompletion=complete_data_set,
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Do not decode the images of your own data; of published data, do not compare files or read features.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check data and count them: broken or duplicate images, captions, leakage, the completeness of published data.

    Lines marked WRONG name faults, and the exit code is then 1.
    Lines marked "note" name facts that are not faults.
    """
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import bar, voice
    from openvse.datasets import DATASETS, FACTS, check_data
    from openvse.datasets.registry import parse_source

    name, place = parse_source(source)
    if not name and source in DATASETS and not place.exists():
        raise OpenVSEError(
            f"{source} is the name of a data set: give {source}:FOLDER, the folder with its files"
        )
    with bar() as progress:
        findings = check_data(source, quick=quick, allow_outside=voice.allow_outside, progress=progress.show)
    counts, complete = counted(source), all(finding.ok for finding in findings)
    if as_json:
        reports = [
            {"mark": finding.mark.lower(), "text": finding.text, "cases": finding.cases}
            for finding in findings
        ]
        result = {"data": name or source, "root": str(place), "complete": complete, "findings": reports}
        print_json("data check", {**result, "splits": [] if counts is None else counts.to_json()})
        raise typer.Exit(0 if complete else 1)
    for finding in findings:
        show_finding(finding)
    if counts is not None:
        typer.echo(f"\n{counts.to_text().rstrip()}\n")
    where = escaped(f"{name} at {place}" if name else source)
    if complete:
        typer.echo(f"{where} is complete" if name in FACTS else f"{where}: nothing that harms training")
        return
    harm = f" is not complete: see the lines marked WRONG, and openvse list data {name}"
    typer.echo(where + (harm if name in FACTS else ": the lines marked WRONG harm training"), err=True)
    raise typer.Exit(1)


def counted(source: str) -> Table | None:
    """Return items, sentences, words and vocabulary of each split; None of data that do not open."""
    from openvse.datasets import open_corpus
    from openvse.datasets.statistics import data_statistics

    try:
        corpus = open_corpus(source, require_images=False, allow_outside=True, merge_captions=False)
    except OpenVSEError:  # which is one of the findings
        return None
    return data_statistics(corpus)


def show_finding(finding: Finding) -> None:
    """Print a finding and its first cases; on a terminal, lines are broken between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = textwrap.wrap(finding.text, columns - 8, break_long_words=False) if columns else [finding.text]
    typer.echo(f"{finding.mark:>5}  {f'{chr(10)}       '.join(lines)}")
    for case in finding.cases[:CASES]:
        typer.echo(f"         {case}")
    if (more := len(finding.cases) - CASES) > 0:
        typer.echo(f"         ... and {more:,} more (--json lists all)")
