"""``openvse join``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device


@app.command(rich_help_panel="Convert")
def join(
    models: Annotated[
        list[str],
        typer.Argument(
            help="At least two models: folders of models or runs, or hub ids.", metavar="MODEL..."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
    share: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of each model in the score, in their order (repeat the option); equal by default.",
            metavar="NUMBER",
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Make one model of several, whose score is the mean of theirs, so that an index can serve it."""
    from openvse.files import refuse_there
    from openvse.model import TwoTower
    from openvse.model import join as run
    from openvse.model.folder import CONFIG, WEIGHTS
    from openvse.tasks.load import find_model, load_as

    refuse_there([out / CONFIG, out / WEIGHTS], "choose another --out, or delete it first")
    members = [load_as(TwoTower, find_model(name, in_run=True), device=device) for name in models]
    joined = run(members, share)
    widths = [member.spec.embed_dim for member in members]
    joined.save(out)
    typer.echo(
        f"{joined.spec.embed_dim} numbers per image or sentence ({' + '.join(map(str, widths))})", err=True
    )
    typer.echo(out)
