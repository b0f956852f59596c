"""``openvse data``: check or prepare a known data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from openvse.cli.app import app
from openvse.errors import DataError


class DataCommands(TyperGroup):
    """Takes the name of a data set where another command would stand."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put ``check`` before a word that is no command."""
        known = bool(args) and (args[0] in self.commands or args[0].startswith("-"))
        return super().resolve_command(ctx, args if known else ["check", *args])


data = typer.Typer(cls=DataCommands, no_args_is_help=True, help="Check data sets, convert features.")
app.add_typer(data, name="data")


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="flickr8k, flickr30k or openmoji.")],
    root: Annotated[Path, typer.Option(help="Where the files lie, or (openmoji) shall lie.")],
) -> None:
    """Check a data set's files, counts and splits, and say what is missing; openmoji is made from its package."""
    if name == "openmoji":
        from openvse.data.openmoji import open_openmoji

        corpus = open_openmoji(root)
        typer.echo(f"{root}: {len(corpus)} pictures, {len(corpus.captions)} texts")
        return
    from openvse.data.flickr_check import check_flickr

    findings = check_flickr(root, name)
    for finding in findings:
        typer.echo(f"{'ok' if finding.ok else 'WRONG':>5}  {finding.text}")
    if not all(finding.ok for finding in findings):
        raise DataError(f"{name} at {root} is not complete: get what the lines marked WRONG name")
    typer.echo(f"{name} at {root} is complete")
