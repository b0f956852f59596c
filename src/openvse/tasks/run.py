"""A run: from a recipe to a folder with checkpoints, logs and the best model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState

from openvse.backbones.adapters import adapt, require_peft
from openvse.errors import TrainingError
from openvse.features import ExtractionProgress
from openvse.files import locked, write_whole
from openvse.model import Start
from openvse.specs import RunRecipe, TrainingSpec
from openvse.tasks import kind_of
from openvse.tasks.load import find_model, load
from openvse.tasks.recipes import START, parse_recipe
from openvse.training.checkpoint import Progress, require_checkpoint
from openvse.training.inputs import RunInputs
from openvse.training.records import Silent, Watcher
from openvse.training.task import AnyTask
from openvse.training.trainer import Trainer


@dataclass(frozen=True)
class RunResult:
    """A finished run: where the best model lies and what it reached on validation."""

    best: Path
    progress: Progress


def train(
    recipe: RunRecipe,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    on_extraction: Callable[[ExtractionProgress], None] | None = None,
) -> RunResult:
    """Train as a recipe says; the test split is never read.

    Args:
        recipe: what to do.
        folder: the run's folder: ``recipe.yaml``, ``last.pt``, ``best/``, ``metrics.jsonl``, ``tensorboard/``; and
            ``start/``, ``before_after.md`` and ``.json`` where the recipe begins from a model.
        resume: go on with the run in ``folder``; on the CPU it ends at the same numbers as one that never stopped.
        watcher: is notified about every step.
        on_extraction: called with the progress of the extraction of features (``data.features: auto``).

    Raises:
        RecipeError: the recipe does not build.
        DataError: the data cannot be used.
        TrainingError: the folder holds another run, another process writes there, or the loss is no number.
    """
    watcher = watcher or Silent()
    spec = recipe.training
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    accelerator = _accelerator(spec)
    with ExitStack() as held:
        if accelerator.is_main_process:
            held.enter_context(_claimed(folder, recipe, resume))
        accelerator.wait_for_everyone()
        return _train(recipe, RunInputs(folder, accelerator, watcher, on_extraction), resume)


def _train(recipe: RunRecipe, inputs: RunInputs, resume: bool) -> RunResult:
    if any(side is not None and side.encoder.options.get("lora") for side in (recipe.image, recipe.text)):
        require_peft()  # known before hours of extraction
    start = _start_of(recipe, inputs, resume)
    inputs = replace(inputs, start=start)
    task = kind_of(recipe.task).open(recipe, inputs)
    torch.manual_seed(recipe.seed)
    adapt(task.model)
    task.model.provenance = _provenance(recipe, task)
    torch.manual_seed(recipe.seed + inputs.accelerator.process_index)
    trainer = Trainer(recipe, task, inputs.folder, inputs.accelerator, inputs.watcher, start)
    if resume:
        trainer.resume()
    return RunResult(inputs.folder / "best", trainer.fit())


def _start_of(recipe: RunRecipe, inputs: RunInputs, resume: bool) -> Start | None:
    """Copy the model that a run begins from into its folder, so that the run needs nothing else, and load the copy."""
    if recipe.start is None:
        return None
    copy = inputs.folder / START
    if inputs.accelerator.is_main_process and not resume:
        model = load(find_model(recipe.start, in_run=True))
        shutil.rmtree(copy, ignore_errors=True)
        model.save(copy)
    inputs.accelerator.wait_for_everyone()
    return Start(recipe.start, load(copy), copy)


def _provenance(recipe: RunRecipe, task: AnyTask) -> dict[str, Any]:
    """Return what a model's folder says of this run; the run's own folder keeps the whole recipe."""
    tree = recipe.to_dict()
    stated = {key: tree[key] for key in ("description", "published") if tree.get(key)}
    return {"recipe": recipe.name, "seed": recipe.seed, **stated, "data": task.data}


def _accelerator(spec: TrainingSpec) -> Accelerator:
    """Set up device, precision and processes.

    Raises:
        TrainingError: the device is not there, or cannot compute in the precision.
    """
    # Left to find the CPU by itself, accelerate would not join the processes.
    on_cpu = spec.device == "cpu" or (spec.device == "auto" and not torch.accelerator.is_available())
    if on_cpu and spec.precision == "fp16":
        raise TrainingError(
            "training.precision is fp16, which needs a GPU: on a CPU set training.precision=bf16 or fp32"
        )
    # accelerate keeps one state for the whole process, which would refuse a second run of another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="no" if spec.precision == "fp32" else spec.precision,
        # Parts that a phase freezes have no gradient to wait for; looking for them costs time.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=any(phase.frozen for phase in spec.phases))
        ],
    )
    if spec.device not in ("auto", accelerator.device.type):
        raise TrainingError(
            f"training.device is {spec.device}, but this machine offers {accelerator.device.type}: "
            f"set training.device=auto, or install a build of PyTorch for {spec.device}"
        )
    return accelerator


@contextmanager
def _claimed(folder: Path, recipe: RunRecipe, resume: bool) -> Iterator[None]:
    """Make the folder of the run, or check that it holds a run of the same recipe, and keep other processes out."""
    if resume:  # known before hours of extraction
        require_checkpoint(folder / "last.pt")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "run", TrainingError):
        _write_recipe(folder, recipe, resume)
        yield


def _write_recipe(folder: Path, recipe: RunRecipe, resume: bool) -> None:
    written = folder / "recipe.yaml"
    tree: dict[str, Any] = recipe.to_dict()
    if resume and written.is_file():
        # Keys that an older openvse did not know have their defaults.
        before = parse_recipe(yaml.safe_load(written.read_text()), copy=folder / START).to_dict()
        changed = sorted(key for key in {*before, *tree} if before.get(key) != tree.get(key))
        if changed:
            raise TrainingError(
                f"run {folder} was started with another {', '.join(changed)}: resume with its own "
                f"{written}, or start a new run in another folder"
            )
        return
    if not resume and (folder / "last.pt").exists():
        raise TrainingError(f"{folder} already holds a run: go on with --resume, or choose another --out")
    write_whole(written, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
