"""``openvse data``: what a data set consists of, and whether a copy is complete."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from openvse.cli.app import app
from openvse.cli.options import AllowOutside
from openvse.errors import OpenVSEError
from openvse.media.names import escaped

if TYPE_CHECKING:
    from openvse.datasets import Finding


class DataCommands(TyperGroup):
    """Takes the name of a data set where a command would stand: ``openvse data coco``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``names`` where no word is given, and ``describe`` before one that is no command."""
        if not args:
            args = ["names"]
        elif args[0] not in self.commands and not args[0].startswith("-"):
            args = ["describe", *args]
        return super().parse_args(ctx, args)


data = typer.Typer(
    cls=DataCommands,
    help="List the known data sets; with a NAME, say what to fetch, where to put it, and on which terms.",
    subcommand_metavar="NAME | COMMAND [ARGS]...",
)
app.add_typer(data, name="data")


@data.command(hidden=True)
def names() -> None:
    """List the data sets that openvse knows."""
    from openvse.datasets import DATASETS, FACTS, QUESTION_SETS, find_loader

    for name in sorted([*DATASETS, *QUESTION_SETS]):
        title = FACTS[name].title if name in FACTS else (find_loader(name).__doc__ or "").split("\n")[0]
        typer.echo(f"{name:<16}{title}")
    typer.echo("What to fetch, and where to put it: openvse data NAME")


@data.command(hidden=True)
def describe(name: Annotated[str, typer.Argument(help="A data set; 'openvse data' lists them.")]) -> None:
    """Say what to fetch, how large it is, where it is published, on which terms, and where to put it."""
    from openvse.datasets import describe_data

    typer.echo(describe_data(name))


@data.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder or file of your own, NAME:ROOT, or with --root a NAME of 'openvse data'."
        ),
    ],
    root: Annotated[Path | None, typer.Option(help="Where the files of the named data set lie.")] = None,
    read: Annotated[
        bool,
        typer.Option("--read/--no-read", help="Read all: equal items in two splits, features not finite."),
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Of your own data: do not decode the images.")
    ] = False,
    allow_outside: AllowOutside = False,
    cases: Annotated[int, typer.Option(min=0, help="How many cases to list of each finding.")] = 5,
) -> None:
    """Check a data set: broken and duplicate images, captions, leakage; of a published one, whether it is complete.

    Exit code 1 if something is wrong. Notes tell what is no fault.
    """
    from openvse.datasets import DATASETS, FACTS, QUESTION_SETS, check_data, find_loader
    from openvse.datasets.source import parse_source

    name, place = (source, root) if root is not None else parse_source(source, {*DATASETS, *QUESTION_SETS})
    if root is None and not name and source in {*DATASETS, *QUESTION_SETS} and not place.exists():
        raise OpenVSEError(f"{source} is the name of a data set: add --root, where its files lie")
    if name:
        find_loader(name)
    if name in FACTS:
        findings = check_data(name, place, read_files=read and not quick)
        bad = f"{name} at {place} is not complete: see the lines marked WRONG, and openvse data {name}"
        good = f"{name} at {place} is complete"
    else:
        where = f"{name} at {place}" if name else escaped(source)
        bad, good = f"{where}: the lines marked WRONG harm training", f"{where}: nothing that harms training"
        findings = own_findings(f"{name}:{place}" if name else source, quick or not read, allow_outside)
    for finding in findings:
        show_finding(finding, cases)
    if not all(finding.ok for finding in findings):
        typer.echo(bad, err=True)
        raise typer.Exit(1)
    typer.echo(good)


def own_findings(source: str, quick: bool, allow_outside: bool) -> list[Finding]:
    """Check data of one's own, with a bar while images are decoded."""
    from openvse.cli.progress import bar, counted
    from openvse.datasets import check_own

    started = time.perf_counter()
    with bar() as progress:
        show = counted(progress, "decoding")
        return check_own(
            source,
            quick=quick,
            allow_outside=allow_outside,
            progress=lambda done, total: show(done, total, done / max(time.perf_counter() - started, 1e-9)),
        )


def show_finding(finding: Finding, cases: int) -> None:
    """Print a finding and its first cases; a terminal's lines are broken between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = textwrap.wrap(finding.text, columns - 8, break_long_words=False) if columns else [finding.text]
    typer.echo(f"{finding.mark:>5}  {f'{chr(10)}       '.join(lines)}")
    for case in finding.cases[:cases]:
        typer.echo(f"         {case}")
    if cases and len(finding.cases) > cases:
        typer.echo(f"         ... and {len(finding.cases) - cases:,} more (--cases {len(finding.cases)})")
