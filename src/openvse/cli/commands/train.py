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
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from openvse.cli.app import app, main
from openvse.cli.completion import complete_override, complete_recipe
from openvse.cli.options import Quiet, RunDevice, StartModel, Threads
from openvse.cli.stopping import Stopped, describe_stop, going_on

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import SpawnContext

GRACE_SECONDS = 10.0
"""Seconds in which the processes of a stopped run can end by themselves before they are killed."""

Recipe: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A recipe: a YAML file, or a name that 'openvse recipes' lists. Default with --start: finetune.",
        autocompletion=complete_recipe,
    ),
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings that replace those of the recipe, each as key.path=value, such as data.source=photos seed=1.",
        autocompletion=complete_override,
    ),
]


@app.command()
@going_on("the run is kept up to its last checkpoint; run the same command with --resume to continue")
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/RECIPE-sSEED.")] = None,
    start: StartModel = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in the folder of --out; start one if there is none."),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the run in the folder of --out by a new one; stored features are kept.",
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="Number of processes on this machine that share each batch (data-parallel training)."
        ),
    ] = 1,
    device: RunDevice = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model. The model with the best validation score (RSUM, or accuracy of answers) is saved in OUT/best."""
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
    """Return the interval of a validation metric in brackets, as the model folder states it; "" if it has none."""
    from openvse.model import read_config

    stated = read_config(best).provenance.get("validation", {}).get("intervals", {}).get(metric)
    if stated is None or stated[0] == stated[1]:  # all queries right or all wrong: resampling shows no spread
        return ""
    return f" (95 % interval {stated[0]:.1f} to {stated[1]:.1f})"


def launch(processes: int) -> None:
    """Run this command in several processes, and exit with the code of the first process that fails."""
    from torch.multiprocessing.spawn import ProcessExitedException, start_processes

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(processes))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    logging.getLogger("torch.multiprocessing.spawn").setLevel(
        logging.ERROR
    )  # it logs each process that it ends
    try:
        context = start_processes(_run_as, nprocs=processes, join=False, start_method="spawn")  # type: ignore[no-untyped-call]
        _wait(context)
    except ProcessExitedException as error:
        raise typer.Exit(error.exit_code or 1) from error
    raise typer.Exit


def _wait(context: SpawnContext) -> None:
    """Wait for the processes of a run; if this process is stopped, stop them too."""
    try:
        while not context.join():
            pass
    except KeyboardInterrupt as stop:
        _end(context.processes, at_once=isinstance(stop, Stopped))
        raise typer.Exit(describe_stop(stop)[1]) from stop  # the first process says how to continue


def _end(processes: Sequence[BaseProcess], *, at_once: bool) -> None:
    """End processes: ask first, then kill. A Ctrl-C has reached them already; other signals have not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid is not None and number is not None:
                os.kill(process.pid, number)
        deadline = time.monotonic() + (0 if number is None and at_once else GRACE_SECONDS)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))


def _run_as(rank: int) -> None:
    """Run the inherited command line in a new process, as the process of this rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    main()
