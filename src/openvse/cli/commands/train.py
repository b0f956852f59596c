"""``openvse train``."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app, main


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file or a shipped name; see 'openvse recipes'. With --start it may be left out: finetune."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key.path=value, for instance data.source=photos seed=1")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; by default runs/RECIPE-sSEED.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Begin from this model: a run's folder, a model folder, or a hub id."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Data-parallel processes on this machine.")] = 1,
) -> None:
    """Train a model; the best on validation (by RSUM, or accuracy of answers) lies in OUT/best."""
    from openvse.tasks.recipes import load_recipe

    settings = [*(overrides or []), *([f"start={start}"] if start else [])]
    if start and "=" in recipe:
        recipe, settings = "finetune", [recipe, *settings]
    chosen = load_recipe(recipe, settings, copy=out / "start" if resume and out else None)
    if processes > 1 and "RANK" not in os.environ:
        launch(processes)
    from openvse.cli.progress import TrainingBar, bar, counted
    from openvse.tasks.run import train as run
    from openvse.training.records import Silent

    folder = out or Path("runs") / f"{chosen.name.replace('/', '_')}-s{chosen.seed}"
    leading = os.environ.get("RANK", "0") == "0"
    with bar(shown=leading) as progress:
        extraction = {unit: counted(progress, f"extracting {unit}", unit) for unit in ("images", "texts")}
        result = run(
            chosen,
            folder,
            resume=resume,
            watcher=TrainingBar(progress) if leading else Silent(),
            on_extraction=lambda state: extraction[state.unit](state.done, state.total, state.images_per_s),
        )
    if leading:
        reached = result.progress
        score = f"validation {reached.metric} {reached.best_score:.1f}"
        best = f"epoch {reached.best_epoch}" if reached.best_epoch else "the start"
        typer.echo(f"best: {best}, {score}", err=True)
        typer.echo(result.best)


def launch(processes: int) -> None:
    """Run this command in every process, and end with the exit code of the first process that fails."""
    from torch.multiprocessing.spawn import ProcessExitedException, start_processes

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(processes))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it tells whom it ends
    try:
        start_processes(_run_as, nprocs=processes, start_method="spawn")  # type: ignore[no-untyped-call]
    except ProcessExitedException as error:
        raise typer.Exit(error.exit_code or 1) from error
    raise typer.Exit


def _run_as(rank: int) -> None:
    """Run the command line, which a new process inherits, as one of several."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    main()
