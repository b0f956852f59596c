"""``openvse data``: lists the data sets, describes one, checks a copy of it and counts it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperGroup

from openvse.cli.app import app
from openvse.cli.options import AllowOutside, Json
from openvse.errors import OpenVSEError
from openvse.media.names import escaped
from openvse.train_cli.completion import complete_data_set

if TYPE_CHECKING:
    from openvse.datasets import Finding


class DataCommands(TyperGroup):
    """A group of commands that also takes the name of a data set in place of a command: ``openvse data coco``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add ``names`` if no word is given, and ``describe`` before a word that is not a command."""
        if not args:
            args = ["names"]
        elif args[0] not in self.commands and not args[0].startswith("-"):
            args = ["describe", *args]
        return super().parse_args(ctx, args)


data = typer.Typer(
    cls=DataCommands,
    help="List the known data sets. With NAME, say which files to download, where to put them, and under which "
    "licence they are.",
    subcommand_metavar="NAME | COMMAND [ARGS]...",
)
app.add_typer(data, name="data", rich_help_panel="Data")


@data.command(hidden=True)
def names() -> None:
    """List the data sets that openvse knows."""
    from openvse.datasets import DATASETS, FACTS
    from openvse.train_cli.listing import first_line

    for name in DATASETS:
        title = FACTS[name].title if name in FACTS else first_line(DATASETS.get(name))
        typer.echo(f"{name:<16}{title}")
    typer.echo("What to download, and where to put it: openvse data NAME")


@data.command(hidden=True)
def describe(
    name: Annotated[
        str,
        typer.Argument(help="A data set from the list of 'openvse data'.", autocompletion=complete_data_set),
    ],
) -> None:
    """Say what to download, how large it is, where it is published, under which licence, and where to put it."""
    from openvse.datasets import describe_data

    typer.echo(describe_data(name))


Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="The data: your own folder or file, NAME:ROOT, or a NAME from 'openvse data' together with --root.",
        autocompletion=complete_data_set,
    ),
]


@data.command()
def check(
    source: Source,
    root: Annotated[Path | None, typer.Option(help="Folder with the files of the named data set.")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Do not decode the images of your own data; of published data, do not compare files or read features.",
        ),
    ] = False,
    allow_outside: AllowOutside = False,
    cases: Annotated[int, typer.Option(min=0, help="Number of examples to list for each finding.")] = 5,
    as_json: Json = False,
) -> None:
    """Check a data set: broken or duplicate images, captions, leakage; of a published one, completeness too.

    Lines marked WRONG name faults, and the exit code is then 1.
    Lines marked "note" name facts that are not faults.
    """
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import bar
    from openvse.datasets import FACTS, check_data

    name, place = named_place(source, root)
    published = name in FACTS
    with bar() as progress:
        findings = check_data(
            f"{name}:{place}" if name else source,
            quick=quick,
            allow_outside=allow_outside,
            progress=progress.show,
        )
    complete = all(finding.ok for finding in findings)
    if as_json:
        reports = [
            {"mark": finding.mark.lower(), "text": finding.text, "cases": finding.cases}
            for finding in findings
        ]
        result = {"data": name or source, "root": str(place), "complete": complete, "findings": reports}
        print_json("data check", result)
        raise typer.Exit(0 if complete else 1)
    for finding in findings:
        show_finding(finding, cases)
    where = escaped(f"{name} at {place}" if name else source)
    if complete:
        typer.echo(f"{where} is complete" if published else f"{where}: nothing that harms training")
        return
    harm = f" is not complete: see the lines marked WRONG, and openvse data {name}"
    typer.echo(where + (harm if published else ": the lines marked WRONG harm training"), err=True)
    raise typer.Exit(1)


@data.command()
def stats(
    source: Source,
    root: Annotated[Path | None, typer.Option(help="Folder with the files of the named data set.")] = None,
    form: Annotated[
        Literal["text", "markdown", "latex", "csv"], typer.Option("--format", help="How to print the table.")
    ] = "text",
    as_json: Json = False,
) -> None:
    """Count a data set: items, sentences, words and vocabulary of each split (PVSE, Table 1). Reads no image."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import warn
    from openvse.datasets import open_corpus
    from openvse.datasets.statistics import data_statistics

    name, place = named_place(source, root)
    corpus = open_corpus(
        f"{name}:{place}" if name else source, require_images=False, allow_outside=True, merge_captions=False
    )
    table = data_statistics(corpus)
    for problem in corpus.problems:
        warn(problem)
    if as_json:
        print_json("data stats", {"data": corpus.name, "splits": table.to_json()})
        return
    forms: dict[str, Callable[[], str]] = {
        "text": table.to_text,
        "markdown": table.to_markdown,
        "latex": table.to_latex,
        "csv": table.to_csv,
    }
    typer.echo(forms[form]().rstrip("\n"))


def named_place(source: str, root: Path | None) -> tuple[str, Path]:
    """Return name ("" for none) and place of a data set; raise OpenVSEError if only a name is given."""
    from openvse.datasets import DATASETS
    from openvse.datasets.registry import parse_source

    name, place = (source, root) if root is not None else parse_source(source)
    if root is None and not name and source in DATASETS and not place.exists():
        raise OpenVSEError(
            f"{source} is the name of a data set: add --root FOLDER, the folder with its files"
        )
    return name, place


def show_finding(finding: Finding, cases: int) -> None:
    """Print a finding and its first cases; on a terminal, lines are broken between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = textwrap.wrap(finding.text, columns - 8, break_long_words=False) if columns else [finding.text]
    typer.echo(f"{finding.mark:>5}  {f'{chr(10)}       '.join(lines)}")
    for case in finding.cases[:cases]:
        typer.echo(f"         {case}")
    if cases and len(finding.cases) > cases:
        typer.echo(f"         ... and {len(finding.cases) - cases:,} more (--cases {len(finding.cases)})")
