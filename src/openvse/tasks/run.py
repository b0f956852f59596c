"""A training run, which turns a recipe into a folder with checkpoints, logs and the best model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState

from openvse.backbones.fine_tuning import adapt, require_peft
from openvse.corpus.trained_on import also_trained_on
from openvse.errors import CheckpointError, RecipeError, TrainingError
from openvse.files import given_path, locked, made, replacing_files, settle, write_whole
from openvse.functional import computes_bf16
from openvse.model.base import WEIGHTS, Model
from openvse.model.start import Start
from openvse.pipeline import WorkProgress
from openvse.specs import RunRecipe
from openvse.specs.load import dump_yaml
from openvse.specs.recipe import TrainingSpec
from openvse.tasks import task_kind
from openvse.tasks.load import folder_of_model, load
from openvse.tasks.recipes import START, load_recipe
from openvse.training.environment import chosen_precision, expect_memory, precision_of
from openvse.training.inputs import RunInputs
from openvse.training.optimizer import BEST, CHECKPOINT, Progress
from openvse.training.records import METRICS, Logged, Silent, Watcher
from openvse.training.task import AnyTask
from openvse.training.trainer import Trainer

RECIPE = "recipe.yaml"
_EARLIER = (METRICS, "before_after.md", "before_after.json", BEST, START, "tensorboard")


@dataclass(frozen=True)
class RunResult:
    """A finished run: the folder of the best model, its results on validation, and why nothing was trained, or "".

    The process that leads also has the model itself.
    """

    best: Path
    progress: Progress
    untrained: str = ""
    model: Model | None = None

    def __repr__(self) -> str:
        reached, why = self.progress, f", untrained: {self.untrained}" if self.untrained else ""
        if reached.best_epoch < 0:
            return f"RunResult({self.best}{why})"
        kept = f"epoch {reached.best_epoch}" if reached.best_epoch else "the start"
        return f"RunResult({self.best}, validation {reached.metric} {reached.best_score:.1f} of {kept}{why})"


def run_recipe(
    recipe: RunRecipe,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    on_extraction: Callable[[WorkProgress], None] | None = None,
) -> RunResult:
    """Train as a recipe defines. See ``openvse.train``."""
    if resume and overwrite:
        raise TrainingError("--resume continues a run and --overwrite replaces it: give only one of them")
    if not isinstance(recipe, RunRecipe):
        raise RecipeError(f"the recipe is {recipe!r:.40}: give load_recipe(...)")
    folder = given_path(folder, "the folder of the run")
    spec = recipe.training
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    accelerator = _accelerator(spec)
    watcher = watcher or (Logged() if accelerator.is_main_process else Silent())
    with ExitStack() as held:
        if accelerator.is_main_process:
            held.enter_context(_claimed(folder, recipe, resume=resume, overwrite=overwrite))
        accelerator.wait_for_everyone()
        return _train(recipe, RunInputs(folder, accelerator, watcher, on_extraction), resume)


def _train(recipe: RunRecipe, inputs: RunInputs, resume: bool) -> RunResult:
    goes_on = resume and (inputs.folder / CHECKPOINT).is_file()
    if any(side is not None and side.encoder.options.get("lora") for side in (recipe.image, recipe.text)):
        require_peft()  # checked before hours of extraction
    start = _start_of(recipe, inputs, goes_on)
    inputs = replace(inputs, start=start, goes_on=goes_on)
    task = task_kind(recipe.task).open(recipe, inputs)
    if isinstance(task, Model):
        return _keep(task, recipe, inputs)
    start = task.start or start
    if inputs.accelerator.is_main_process:
        _tell_precision(recipe.training.precision, inputs.accelerator, inputs.watcher)
    torch.manual_seed(recipe.seed)
    adapt(task.model)
    if inputs.accelerator.device.type == "cpu":
        _expect_memory(task, start, recipe.training)
    task.model.provenance = _provenance(recipe, task, inputs.start)
    if task.start is not None:  # the run's own start, which it may keep
        task.start.model.provenance = task.model.provenance | {"start": task.start.provenance()}
    torch.manual_seed(recipe.seed + inputs.accelerator.process_index)
    trainer = Trainer(task.recipe, task, inputs.folder, inputs.accelerator, inputs.watcher, start)
    if start is not None and (line := task.seen_by(start.model.provenance).describe(start.name)):
        inputs.watcher.warn(line)
    if goes_on:
        trainer.resume(_started_with(inputs.folder).training.phases)
        if inputs.accelerator.is_main_process:
            _note_recipe(inputs.folder, recipe)
    else:
        _begin(inputs, recipe, start, trainer)
    progress, best, model = trainer.fit(), inputs.folder / BEST, None
    if task.advice:
        inputs.watcher.note(task.advice)
    if inputs.accelerator.is_main_process and best.is_dir():
        model = load(best, device=inputs.accelerator.device)
        task.finish(model, best)
    inputs.accelerator.wait_for_everyone()
    needed = [phase.least_images for phase in recipe.training.phases]
    left_out = needed and not task.recipe.training.phases
    return RunResult(best, progress, f"fewer than {min(needed):,} images for training" if left_out else "", model)


def _start_of(recipe: RunRecipe, inputs: RunInputs, goes_on: bool) -> Start | None:
    """Load the model to begin from. A run that continues has a copy of its own, even if its task made the start."""
    name, folder = recipe.start_name, inputs.folder / START
    if name is None or not (goes_on or isinstance(recipe.start, str)):
        return None
    if not goes_on:
        if inputs.accelerator.is_main_process:
            folder_of_model(name)  # one process fetches and converts it for all
        inputs.accelerator.wait_for_everyone()
        folder = folder_of_model(name)
    return Start(name, load(folder), folder)


def _expect_memory(task: AnyTask, start: Start | None, spec: TrainingSpec) -> None:
    """Raise TrainingError if the weights and their training state exceed the memory of this machine."""
    weights = [*task.model.parameters(), *([] if start is None else start.model.parameters())]
    learned = sum(weight.nbytes for weight in task.model.parameters() if weight.requires_grad)
    copies = 3 if spec.average is None else 4  # the gradient, two moments, the mean
    try:
        expect_memory(sum(weight.nbytes for weight in weights) + copies * learned, "the weights and their training")
    except CheckpointError as error:
        raise TrainingError(f"{error}, or train less of it: fine_tune=false, train_blocks, or lora") from error


def _provenance(recipe: RunRecipe, task: AnyTask, start: Start | None) -> dict[str, Any]:
    """Return the record of this run for the folder of a model. The folder of the run keeps the whole recipe."""
    tree = recipe.to_dict()
    stated = {key: tree[key] for key in ("description", "published") if tree.get(key)}
    data = also_trained_on(task.data, *([] if start is None else [start.model.provenance]))
    digests = {name: split.digest for name, split in task.splits.items()}
    return {"recipe": recipe.name, "seed": recipe.seed, **stated, "data": {**data, "digests": digests}}


def _accelerator(spec: TrainingSpec) -> Accelerator:
    """Set up device, precision and processes. Raise TrainingError if the device does not support them."""
    # If accelerate chose the CPU itself, it would not join the processes.
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    on_cpu = spec.device == "cpu" or (spec.device == "auto" and there is None)
    precision = chosen_precision(spec.precision, "cpu" if on_cpu or there is None else there.type)
    # accelerate keeps one state for the whole process, which would refuse a second run with another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="no" if precision == "fp32" else precision,
        # Parts that a phase freezes have no gradient. Searching for them costs time.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=any(phase.frozen for phase in spec.phases))
        ],
    )
    # What stays in fp32 is computed exactly only where everything is. cuDNN plans attention anew for each length of a
    # batch, which takes longer than other ways take to compute it.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cuda.enable_cudnn_sdp(False)
    if spec.device not in ("auto", accelerator.device.type):
        raise TrainingError(
            f"training.device is {spec.device}, but this machine offers {accelerator.device.type}: "
            f"set training.device=auto, or install a build of PyTorch for {spec.device}"
        )
    return accelerator


def _tell_precision(wanted: str, accelerator: Accelerator, watcher: Watcher) -> None:
    """Log the choice of ``auto``, and warn if a processor is far slower in bf16."""
    if wanted == "auto":
        watcher.note(f"precision: {precision_of(accelerator)}")
    elif wanted == "bf16" and accelerator.device.type == "cpu" and not computes_bf16("cpu"):
        watcher.warn(
            "training.precision is bf16, for which this processor has no instructions, so steps can take many times "
            "as long: set training.precision=auto or fp32"
        )


@contextmanager
def _claimed(folder: Path, recipe: RunRecipe, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Make the folder of the run, or check that this run may write there, and keep other processes out.

    A run that ends before it wrote anything, for instance because its data are missing, leaves no folder.
    """
    with made(folder), locked(folder, "run", TrainingError):
        settle(folder, CHECKPOINT)
        if resume and (folder / CHECKPOINT).exists():
            _check_recipe(folder, recipe)
        elif not overwrite:
            _check_empty(folder, recipe)
        yield


def _started_with(folder: Path) -> RunRecipe:
    """Return the recipe of the run in a folder, which is written before the first checkpoint."""
    return load_recipe(folder / RECIPE, copy=folder / START)


def _check_recipe(folder: Path, recipe: RunRecipe) -> None:
    """Raise TrainingError unless the resumed run was started with this recipe, except for phases and places."""
    before, tree = _started_with(folder).to_dict(), recipe.to_dict()
    # The trainer knows how far phases may differ, and compares the pairs of the data.
    before["training"]["phases"] = tree["training"]["phases"]
    if changed := changed_keys(before, tree):
        raise TrainingError(
            f"run {folder} was started with another {', '.join(changed)}: resume with its own {folder / RECIPE} (only "
            f"future epochs in training.phases and the place of the same data may differ), or start a new run in "
            f"another folder"
        )


def changed_keys(before: Mapping[str, Any], tree: Mapping[str, Any]) -> list[str]:
    """Return the sections in which two recipes differ, but for the places of their data."""
    one, other = ({**each, "data": without_places(each.get("data", {}))} for each in (before, tree))
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def without_places(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's description of its data, without their places."""
    return {key: value for key, value in data.items() if key not in ("source", "features", "text_features")}


def _check_empty(folder: Path, recipe: RunRecipe) -> None:
    """Raise TrainingError where a new run would replace the results of an earlier one."""
    if (folder / CHECKPOINT).exists():
        raise TrainingError(f"{folder} already holds a run: give --resume, --overwrite or another --out")
    if (folder / BEST / WEIGHTS).exists():
        raise TrainingError(
            f"{folder} holds the {BEST}/ of a run without its {CHECKPOINT}, from which it could continue: replace it "
            f"with --overwrite, choose another --out, or train on from that model: {_anew(folder, recipe)}"
        )


def _anew(folder: Path, recipe: RunRecipe) -> str:
    """Return the command that begins a new run from the model of a folder, with the requested phases."""
    phases = [phase.model_dump(mode="json", exclude_defaults=True) for phase in recipe.training.phases]
    flow = dump_yaml(phases, flow=True, width=math.inf).strip()
    named = str(folder / RECIPE) if (folder / RECIPE).is_file() else recipe.name
    words = ("openvse", "train", named, f"training.phases={flow}", "--start", str(folder))
    return shlex.join((*words, "--out", f"{folder}-more"))


def _keep(model: Model, recipe: RunRecipe, inputs: RunInputs) -> RunResult:
    """Write the folder of a run whose data do not allow training, in place of an earlier run."""
    if inputs.accelerator.is_main_process:
        with replacing_files(inputs.folder, RECIPE, (*_EARLIER, CHECKPOINT)) as folder:
            model.save(folder / BEST)
            _note_recipe(folder, recipe)
    inputs.accelerator.wait_for_everyone()
    return RunResult(inputs.folder / BEST, Progress(), "too few images with captions", model)


def _begin(inputs: RunInputs, recipe: RunRecipe, start: Start | None, trainer: Trainer) -> None:
    """Write recipe, start and first checkpoint, which replace an earlier run except its features."""
    if not inputs.accelerator.is_main_process:
        trainer.checkpoint()
        return
    with replacing_files(inputs.folder, CHECKPOINT, _EARLIER) as folder:
        if start is not None:  # from here on the run needs nothing else
            start.model.save(folder / START)
        _note_recipe(folder, recipe)
        trainer.checkpoint(folder)


def _note_recipe(folder: Path, recipe: RunRecipe) -> None:
    write_whole(folder / RECIPE, dump_yaml(recipe.to_dict()))
