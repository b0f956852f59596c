"""``openvse data``: what a data set consists of, and whether a copy is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from openvse.cli.app import app
from openvse.cli.completion import complete_data_set
from openvse.cli.options import Json, Quiet


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
def describe(
    name: Annotated[
        str, typer.Argument(help="A data set; 'openvse data' lists them.", autocompletion=complete_data_set)
    ],
) -> None:
    """Say what to fetch, how large it is, where it is published, on which terms, and where to put it."""
    from openvse.datasets import describe_data

    typer.echo(describe_data(name))


@data.command()
def check(
    name: Annotated[
        str, typer.Argument(help="A data set; 'openvse data' lists them.", autocompletion=complete_data_set)
    ],
    root: Annotated[Path, typer.Option(help="Where its files lie.")],
    read: Annotated[
        bool,
        typer.Option("--read/--no-read", help="Read all: equal items in two splits, features not finite."),
    ] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check files, counts, splits and known identifiers; say what is missing. Exit code 1 if something is wrong."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import bar
    from openvse.datasets import check_data

    with bar() as progress:
        findings = check_data(name, root, read_files=read, progress=progress.show)
    complete = all(finding.ok for finding in findings)
    if as_json:
        found = [{"mark": finding.mark.lower(), "text": finding.text} for finding in findings]
        print_json("data check", {"data": name, "root": str(root), "complete": complete, "findings": found})
        raise typer.Exit(0 if complete else 1)
    for finding in findings:
        typer.echo(f"{finding.mark:>5}  {finding.text}")
    if not complete:
        typer.echo(
            f"{name} at {root} is not complete: see the lines marked WRONG, and openvse data {name}", err=True
        )
        raise typer.Exit(1)
    typer.echo(f"{name} at {root} is complete")
