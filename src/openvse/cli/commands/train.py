"""``openvse train``."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app, main
from openvse.cli.completion import complete_override, complete_recipe
from openvse.cli.options import Quiet, RunDevice, StartModel, Threads
from openvse.cli.stopping import Stopped, describe_stop, going_on

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import SpawnContext

GRACE_SECONDS = 10.0
"""How long the processes of a run that is stopped have to end by themselves."""


@app.command()
@going_on("the run is kept as its last checkpoint has it; run the same command with --resume to go on")
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file or a shipped name; see 'openvse recipes'. With --start it may be left out: finetune.",
            autocompletion=complete_recipe,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="key.path=value, for instance data.source=photos seed=1", autocompletion=complete_override
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; by default runs/RECIPE-sSEED.")
    ] = None,
    start: StartModel = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; begin it if there is none.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, and replace the run in --out.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Data-parallel processes on this machine.")] = 1,
    device: RunDevice = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model; the best on validation (by RSUM, or accuracy of answers) lies in OUT/best."""
    from openvse.tasks.recipes import load_recipe

    recipe, settings = _chosen(recipe, overrides or [], start, device, threads)
    chosen = load_recipe(recipe, settings, copy=out / "start" if resume and out else None)
    if processes > 1 and "RANK" not in os.environ:
        launch(processes)
    from openvse.cli.progress import TrainingBar, bar, counted, note
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
            overwrite=overwrite,
            watcher=TrainingBar(progress) if leading else Silent(),
            on_extraction=lambda state: extraction[state.unit](state.done, state.total, state.images_per_s),
        )
    if leading:
        best, reached = f"epoch {result.progress.best_epoch}", result.progress
        within = interval_of(result.best, reached.metric)
        if not reached.best_epoch:
            best, within = "the start", ""  # what its folder states is about the data of its own run
        note(f"best: {best}, validation {reached.metric} {reached.best_score:.1f}{within}")
        typer.echo(result.best)


def _chosen(
    recipe: str, overrides: Sequence[str], start: str | None, device: str | None, threads: int | None
) -> tuple[str, list[str]]:
    """Return the recipe, which may be left out beside a start, and all that is set on the command line."""
    settings = [*overrides, *([f"start={start}"] if start else [])]
    if start and "=" in recipe:
        recipe, settings = "finetune", [recipe, *settings]
    given = {"training.device": device, "training.threads": threads}
    return recipe, [*settings, *(f"{key}={value}" for key, value in given.items() if value is not None)]


def interval_of(best: Path, metric: str) -> str:
    """Return the interval that a model's folder states for a figure of its validation, in brackets, if it does."""
    from openvse.model import read_config

    stated = read_config(best).provenance.get("validation", {}).get("intervals", {}).get(metric)
    if stated is None or stated[0] == stated[1]:  # all right or all wrong: resampling cannot tell
        return ""
    return f" (95 % interval {stated[0]:.1f} to {stated[1]:.1f})"


def launch(processes: int) -> None:
    """Run this command in every process, and end with the exit code of the first process that fails."""
    from torch.multiprocessing.spawn import ProcessExitedException, start_processes

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(processes))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it tells whom it ends
    try:
        context = start_processes(_run_as, nprocs=processes, join=False, start_method="spawn")  # type: ignore[no-untyped-call]
        _wait(context)
    except ProcessExitedException as error:
        raise typer.Exit(error.exit_code or 1) from error
    raise typer.Exit


def _wait(context: SpawnContext) -> None:
    """Wait for the processes of a run; when this one is stopped, they are."""
    try:
        while not context.join():
            pass
    except KeyboardInterrupt as stop:
        _end(context.processes, at_once=isinstance(stop, Stopped))
        raise typer.Exit(describe_stop(stop)[1]) from stop  # the leading process says how to go on


def _end(processes: Sequence[BaseProcess], *, at_once: bool) -> None:
    """End processes in an orderly way; a Ctrl-C has reached them already, other signals have not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid is not None and number is not None:
                os.kill(process.pid, number)
        deadline = time.monotonic() + (0 if number is None and at_once else GRACE_SECONDS)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))


def _run_as(rank: int) -> None:
    """Run the command line, which a new process inherits, as one of several."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    main()
