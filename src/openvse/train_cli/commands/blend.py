"""``openvse blend``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, On, Out


@app.command(rich_help_panel="Convert")
def blend(
    first: Annotated[
        str,
        typer.Argument(
            help="The first model: a model folder or a hub id, such as the model that a run started from."
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(help="A second model with the same parts, such as the folder best/ of the run."),
    ],
    on: On,
    out: Out,
    features: Annotated[
        Path | None,
        typer.Option(help="Feature store to read instead of the images, or a folder of stores."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Average the weights of two models with the same parts, with the share that is best on validation."""
    from openvse.cli.progress import voice, warn
    from openvse.files import refuse_there
    from openvse.model.folder import CONFIG, WEIGHTS
    from openvse.tasks.blend import blend as run
    from openvse.tasks.load import load
    from openvse.training.kind import Request

    refuse_there([out / CONFIG, out / WEIGHTS], "choose another --out, or delete it first")
    request = Request(
        on, "validation", () if features is None else (features,), allow_outside=voice.allow_outside
    )
    one, other = (load(name, device=device) for name in (first, second))
    done = run(one, other, request)
    for line in done.warnings:
        warn(line)
    typer.echo(f"share of {second}   validation {done.metric}")
    for share, score in done.scores:
        typer.echo(f"{share:5.2f}  {score:6.1f}{'  best' if share == done.share else ''}")
    done.model.save(out)
    if done.share in (0.0, 1.0):
        typer.echo(
            f"no average is better than {(first, second)[int(done.share)]}, so {out} is a copy of it",
            err=True,
        )
    typer.echo(out)
