"""``openvse blend``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import AllowOutside, Device


@app.command()
def blend(
    first: Annotated[str, typer.Argument(help="A model folder or hub id, such as what a run began from.")],
    second: Annotated[str, typer.Argument(help="Another of the same parts, such as the run's best/.")],
    on: Annotated[str, typer.Option("--on", help="The data whose validation split chooses the share.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    split: Annotated[str, typer.Option(help="The split that chooses: validation, or train.")] = "validation",
    features: Annotated[
        Path | None, typer.Option(help="A feature store to read instead of images, or a folder of stores.")
    ] = None,
    shares: Annotated[int, typer.Option(min=2, help="How many shares to try, from 0 to 1.")] = 11,
    allow_outside: AllowOutside = False,
    device: Device = "cpu",
) -> None:
    """Average the weights of two models of the same parts, by the share that is the best on validation."""
    from openvse.errors import OpenVSEError
    from openvse.tasks.blend import blend as run
    from openvse.tasks.load import find_model, load
    from openvse.training.kind import Request

    if split == "test":
        raise OpenVSEError("--split test would choose on what is measured afterwards: choose on validation")
    request = Request(on, split, () if features is None else (features,), allow_outside=allow_outside)
    one, other = (load(find_model(name, in_run=True), device=device) for name in (first, second))
    done = run(one, other, request, num_shares=shares)
    typer.echo(f"share of {second}   {split} {done.metric}")
    for share, score in done.scores:
        typer.echo(f"{share:5.2f}  {score:6.1f}{'  best' if share == done.share else ''}")
    done.model.save(out)
    if done.share in (0.0, 1.0):
        typer.echo(f"no mean is above {(first, second)[int(done.share)]}, which {out} now holds", err=True)
    typer.echo(out)
