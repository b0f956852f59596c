"""``openvse data``: check or prepare a known data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.errors import DataError


@app.command()
def data(
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
