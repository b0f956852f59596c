"""``openvse train`` and ``openvse demo``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from openvse.cli.app import app
from openvse.cli.options import Out, Overwrite, RunDevice, StartModel, Threads, argument, option
from openvse.cli.progress import bar, counted, going_on, note, voice
from openvse.indexing.manifest import MANIFEST
from openvse.train_cli.completion import complete_override, complete_recipe
from openvse.train_cli.launching import TrainingBar, launch, leads, leave
from openvse.training.records import Silent

if TYPE_CHECKING:
    from openvse.model.base import Model
    from openvse.model.two_tower import TwoTower
    from openvse.specs import RunRecipe

Recipe: TypeAlias = Annotated[
    str,
    argument(
        "A recipe: a YAML file, or a name that 'openvse list recipes' lists. Default with --start: finetune.",
        complete=complete_recipe,
    ),
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    argument(
        "Settings that replace the recipe's, each as key.path=value, such as data.source=photos seed=1.",
        complete=complete_override,
    ),
]


@app.command(rich_help_panel="Train")
@going_on("the run is kept up to its last checkpoint: run the same command with --resume to continue")
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, option("Folder of the run. Default: runs/RECIPE-sSEED.")] = None,
    start: StartModel = None,
    resume: Annotated[bool, option("Continue the run in the folder of --out, or start a new one.", "--resume")] = False,
    overwrite: Overwrite = False,
    processes: Annotated[
        int, option("Number of processes on this machine that share each batch (data-parallel training).", least=1)
    ] = 1,
    device: RunDevice = None,
    threads: Threads = None,
) -> None:
    """Train a model. The model with the best validation score (RSUM, or accuracy of answers) is saved in OUT/best."""
    from openvse.tasks.recipes import load_recipe

    recipe, settings = _chosen(recipe, overrides or [], start, device, threads)
    chosen = load_recipe(recipe, settings, copy=out / "start" if resume and out else None)
    launch(processes)
    from openvse.tasks.run import run_recipe

    folder = out or Path("runs") / f"{chosen.name.replace('/', '_')}-s{chosen.seed}"
    leading = leads()
    with bar(shown=leading) as progress:
        extraction = {unit: counted(progress, f"extracting {unit}", unit) for unit in ("images", "texts")}
        result = run_recipe(
            chosen,
            folder,
            resume=resume,
            overwrite=overwrite,
            watcher=TrainingBar(progress) if leading else Silent(),
            on_extraction=lambda state: extraction[state.unit](state.done, state.total, state.per_s),
        )
    leave()
    if leading:
        best, reached = f"epoch {result.progress.best_epoch}", result.progress
        within = interval_of(result.best, reached.metric)
        if not reached.best_epoch:
            best, within = "the start", ""  # what its folder states is about the data of its own run
        if measured := reached.best_epoch >= 0:
            note(f"best: {best}, validation {reached.metric} {reached.best_score:.1f}{within}")
        typer.echo(result.best)
        for line in _next_commands(folder, chosen, result.model, measured=measured):
            note(line)


def _next_commands(folder: Path, recipe: RunRecipe, model: Model | None, *, measured: bool) -> Iterator[str]:
    """Yield the commands that follow a run, each as a line. A run without captions cannot be evaluated."""
    data, where = recipe.data.source or "DATA", str(folder)
    stores = {"--features": recipe.data.features, "--text-features": recipe.data.text_features}
    read = [word for name, store in stores.items() if store not in (None, "auto") for word in (name, store)]
    outside = ["--allow-outside"] * recipe.data.allow_outside
    if measured:
        yield f"next: {shlex.join(('openvse', 'evaluate', where, '--on', data, *read, *outside))}"
    towers = cast("TwoTower", model)
    if model is None or model.task != "retrieval" or not Path(data).is_dir() or not towers.reads_images:
        return
    if towers.indexable:
        index = folder / "index"
        again = ["--overwrite"] * (index / MANIFEST).is_file()  # it is of an earlier model
        yield f"      {shlex.join(('openvse', 'index', where, data, '--out', str(index), *again))}"
        yield f"      {shlex.join(('openvse', 'search', where, 'a sentence'))}"
    else:
        yield f"      {shlex.join(('openvse', 'search', data, 'a sentence', '--rerank', where))}"


def _chosen(
    recipe: str, overrides: Sequence[str], start: str | None, device: str | None, threads: int | None
) -> tuple[str, list[str | tuple[str, Any]]]:
    """Return the recipe, which may be omitted with --start, and all settings of the command line."""
    settings = [*overrides]
    if start and "=" in recipe:
        recipe, settings = "finetune", [recipe, *settings]
    given = {"training.device": device, "training.threads": threads, "start": start}
    given["data.allow_outside"] = voice.allow_outside or None
    return recipe, [*settings, *((key, value) for key, value in given.items() if value is not None)]


def interval_of(best: Path, metric: str) -> str:
    """Return the interval of a validation metric in brackets, as the model folder states it, or "" without one."""
    from openvse.model.base import read_config

    stated = read_config(best).provenance.get("validation", {}).get("intervals", {}).get(metric)
    if stated is None or stated[0] == stated[1]:  # all queries right or all wrong: resampling shows no spread
        return ""
    return f" (95 % interval {stated[0]:.1f} to {stated[1]:.1f})"


@app.command(rich_help_panel="Train")
@going_on("finished work is kept: run the same command again to continue")
def demo(out: Out = Path("demo_output"), device: RunDevice = None, threads: Threads = None) -> None:
    """Train on images of emoji, compare the result with chance, and search: a few minutes on two cores, offline."""
    from openvse.demo import BEYOND, QUERIES, run_demo

    note("openvse demo: OpenMoji images (CC BY-SA 4.0) with names and keywords from Unicode CLDR")
    with bar() as progress:
        watcher, prepare = TrainingBar(progress), counted(progress, "preparing", "items")
        overrides = [] if device is None else [f"training.device={device}"]
        result = run_demo(out, seed=0, watcher=watcher, on_images=prepare, overrides=overrides)
    typer.echo("Without captions, by the names of things, which photographs would suit better (--model names):")
    typer.echo("\n".join([*result.by_names, "", "Trained on captions:", "", result.table]))
    for query, hits in zip(QUERIES, result.answers, strict=True):
        shown = ", ".join(f"{hit.label}{' (held out)' if hit.held_out else ''} {hit.score:.2f}" for hit in hits[:5])
        typer.echo(f"{query!r}: {shown}" + (f"\n  ({BEYOND[query]})" if query in BEYOND else ""))
    typer.echo(f"\nreport: {result.report}\ncontact sheet (open it in a browser): {result.contact_sheet}")
    typer.echo(f"search it yourself: openvse search {result.index} 'angry face'")
