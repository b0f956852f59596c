"""The training loop, which all tasks share, and the comparison of a run's start with its best epoch.

A start is measured first, and kept if training does not improve it. The results of both are reported with their
difference and its interval.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from jaxtyping import Float
from torch import Tensor, nn

from openvse.corpus.trained_on import SplitData
from openvse.errors import OpenVSEError, TrainingError, message_of
from openvse.evaluation.comparison import Difference, paired_differences
from openvse.evaluation.metrics import metric_names
from openvse.evaluation.report import metric_title
from openvse.files import sync
from openvse.model.start import Start
from openvse.output.documents import CONFIDENCE, write_report
from openvse.output.table import Table
from openvse.registry import installed, load_part
from openvse.specs import RunRecipe
from openvse.specs.recipe import PhaseSpec
from openvse.training.environment import environment, peak_memory, precision_of
from openvse.training.optimizer import (
    BEST,
    CHECKPOINT,
    Progress,
    Schedule,
    WeightAverage,
    announcement,
    build_optimizer,
    check_prefixes,
    freeze,
    load_checkpoint,
    phase_changes,
    same_past,
    save_checkpoint,
)
from openvse.training.records import METRICS, CollapseDetector, EpochReport, MetricsLog, StepReport, Watcher
from openvse.training.task import AnyTask, Step


class EpochClock:
    """Measures the steps of one epoch. Validation and the time between two sessions do not count."""

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds_before, self._reported_step = seconds, step
        self._start = self._now = self._report = self._checkpoint = time.monotonic()

    def tick(self) -> float:
        """Read the time at the end of a step, and return the seconds of training so far."""
        self._now = time.monotonic()
        return self._seconds_before + self._now - self._start

    def steps_per_s(self, step: int) -> float:
        """Return the steps per second since the last call. ``step`` batches of the epoch are done."""
        speed = (step - self._reported_step) / max(self._now - self._report, 1e-9)
        self._report, self._reported_step = self._now, step
        return speed

    def checkpoint_is_due(self, every_s: float) -> bool:
        """Return whether the last checkpoint, or the start, is at least ``every_s`` seconds ago."""
        return self._now - self._checkpoint >= every_s

    def checkpoint_written(self) -> None:
        """Start to measure the time to the next checkpoint."""
        self._checkpoint = time.monotonic()


class Trainer:
    """Trains the model of a task by a recipe."""

    def __init__(
        self,
        recipe: RunRecipe,
        task: AnyTask,
        folder: Path,
        accelerator: Accelerator,
        watcher: Watcher,
        start: Start | None = None,
    ) -> None:
        self.recipe, self.task, self.folder = recipe, task, folder
        self.accelerator, self.watcher = accelerator, watcher
        self.model = task.model.to(accelerator.device)
        self.objectives = nn.ModuleList(task.objectives).to(accelerator.device)
        self.schedule = Schedule(recipe.optimizer, recipe.training.phases, task.steps_per_epoch)
        # Parts that their encoder has frozen (fine_tune: false) never train, even if a phase names them.
        named = [*self.model.named_parameters(), *self.objectives.named_parameters(prefix="objectives")]
        self.trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        for index, phase in enumerate(recipe.training.phases):
            check_prefixes(phase.frozen, [name for name, _ in named], f"training.phases.{index}.frozen")
        self.optimizer = accelerator.prepare_optimizer(build_optimizer(recipe.optimizer, self.trainable))
        self.wrapped: nn.Module = accelerator.prepare_model(self.model)
        spec, of_model = recipe.training.average, {id(weight) for weight in self.model.parameters()}
        ours = [(name, weight) for name, weight in self.trainable if id(weight) in of_model]
        self.average = None if spec is None else WeightAverage(spec, ours)
        self.progress = Progress(metric=task.metric)
        self.collapse = CollapseDetector(task.collapse)
        # Steps whose loss may not be computed yet: number, description, terms, and for some the loss at collapse.
        self._unread: list[tuple[int, str, Mapping[str, Tensor], tuple[Tensor, ...]]] = []
        self._take: Callable[[Any, int], Step] = self.take
        if recipe.training.graphs == "on":
            if (entry := installed("kernel").get("steps")) is not None:
                self._take = load_part(entry)(self)
            else:
                watcher.note("training.graphs: no step is captured: install packages/openvse-cuda-graphs")
        self.begun = None if start is None else FromStart(start, task, folder, watcher)

    def fit(self) -> Progress:
        """Train from the present state of the run to its last epoch. After an error the last checkpoint stays."""
        done, log = self.progress, None
        if self.accelerator.is_main_process:
            log = MetricsLog(self.folder, done.global_step, done.epoch)
        self.watcher.started(
            total_steps=self.schedule.num_epochs * self.task.steps_per_epoch,
            done_steps=done.epoch * self.task.steps_per_epoch + done.step,
            num_epochs=self.schedule.num_epochs,
        )
        try:
            if log is not None and done.epoch < self.schedule.num_epochs:
                facts = environment(self.accelerator.device) | {"precision": precision_of(self.accelerator)}
                log.note("environment", done.epoch, done.global_step, facts)
            if done.global_step == 0:
                self._meet_data(log)
            while self.progress.epoch < self.schedule.num_epochs:
                self._train_epoch(log)
                self._finish_epoch(log)
        finally:
            if log is not None:
                log.close()
        return self.progress

    def _meet_data(self, log: MetricsLog | None) -> None:
        """Record the data, and measure the start on them."""
        if log is not None:
            if self.task.splits:
                facts = {
                    f"{name}_{key}": value
                    for name, split in self.task.splits.items()
                    for key, value in split.values().items()
                }
                log.note("data", 0, 0, facts)
            if self.task.coverage is not None:
                log.note("vocabulary", 0, 0, asdict(self.task.coverage))
            if self.task.baseline:
                log.write("baseline", 0, 0, self.task.baseline)
        if self.begun is not None:
            self._measure_start(self.begun, log)
            self.checkpoint()

    def resume(self, planned: Sequence[PhaseSpec]) -> None:
        """Load the state in ``last.pt``. ``planned`` are the phases of the run so far."""
        self.progress, state = load_checkpoint(self.folder / CHECKPOINT)
        self._go_on_under(planned)
        self._expect_data(state["data"])
        try:
            self.model.load_state_dict(state["model"])
            self.objectives.load_state_dict(state["objectives"], strict=len(planned) == len(self.task.objectives))
            self.optimizer.load_state_dict(state["optimizer"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
            if self.average is not None:
                self.average.load_state(state["average"])
            if self.begun is not None:
                self.begun.load_state(state["start"])
            self._continue_random_numbers(state["random"])
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise TrainingError(
                f"checkpoint {self.folder / 'last.pt'} does not fit this run ({message_of(error)}): resume with the "
                f"recipe that started the run"
            ) from error

    def _expect_data(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise TrainingError if the pairs of a split differ from a checkpoint's."""
        before = {name: SplitData(**values) for name, values in saved.items()}
        changes = [
            f"{name}: {then.size} then, {now.size if now.size != then.size else 'others or in another order'} now"
            for name, now in self.task.splits.items()
            if (then := before.get(name)) is not None and then != now
        ]
        if changes:
            raise TrainingError(
                f"the data have changed since {self.folder} began ({'; '.join(changes)}): give the "
                f"same pairs in the same order, or begin a new run from it (--start {self.folder} --out ANOTHER)"
            )

    def _go_on_under(self, planned: Sequence[PhaseSpec]) -> None:
        """Say how the schedule continues if phases were added or changed. Completed epochs must not change."""
        phases, done, now = self.recipe.training.phases, self.progress, self.schedule.num_epochs
        if "train" in self.task.splits:  # as in ``with_phases_for``
            images = self.task.splits["train"].images
            planned = [phase for phase in planned if phase.least_images <= images]
        reached, wrong = done.epoch + bool(done.step), ""
        if not same_past(planned, phases, reached):
            wrong = f"the run has reached epoch {reached}, but training.phases changes earlier epochs"
        elif len(planned) != len(phases) and any(True for _ in self.objectives.parameters()):
            wrong = "its loss learns parameters for each phase, but training.phases has another number of phases"
        if wrong:
            raise TrainingError(
                f"{self.folder}: {wrong}. Give the last phase of its recipe.yaml more epochs, or begin a new run from "
                f"its best model: --start {self.folder}"
            )
        if [*planned] != [*phases] and done.epoch < now:
            rate = self.schedule.learning_rate(done.epoch, done.step) * done.plateau.rate_factor
            self.watcher.note(
                f"the run ends with epoch {now} (before: {sum(phase.epochs for phase in planned)}): epoch "
                f"{done.epoch + 1} is in phase {self.schedule.phase_index(done.epoch) + 1} of {len(phases)}, at the "
                f"learning rate {rate:g}"
            )

    def _continue_random_numbers(self, states: list[dict[str, Any]]) -> None:
        """Restore the random numbers of this process. A process that is new to the run begins with new ones."""
        accelerator = self.accelerator
        if accelerator.process_index < len(states):
            _set_random_state(states[accelerator.process_index])
        else:
            torch.manual_seed(self.recipe.seed + accelerator.process_index + self.progress.global_step)
        if accelerator.num_processes != len(states) and accelerator.is_main_process:
            self.watcher.note(
                f"the run had {len(states)} process(es) and continues with {accelerator.num_processes}: its "
                f"batches stay the same, but augmentation and dropout draw other random numbers"
            )

    def _train_epoch(self, log: MetricsLog | None) -> None:
        progress, spec = self.progress, self.recipe.training
        phase = self.schedule.phase_index(progress.epoch)
        freeze(self.trainable, spec.phases[phase].frozen)
        self._enter_phase(progress.epoch, log)
        self.wrapped.train()
        clock = EpochClock(progress.seconds, progress.step)
        for batch in self.task.epoch(progress.epoch, progress.step):
            rate = self.schedule.apply(
                self.optimizer, progress.epoch, progress.step, rate_factor=progress.plateau.rate_factor
            )
            step = self._take(batch.to(self.accelerator.device), phase)
            self._note(step)
            progress.step += 1
            progress.global_step += 1
            has_line = progress.step % spec.log_every == 0 or progress.step == self.task.steps_per_epoch
            if has_line:
                terms, diagnostics = self._read(step.diagnostics())
            del step  # its graph of gradients must be gone before a step is captured
            progress.seconds = clock.tick()
            if has_line:
                speed = clock.steps_per_s(progress.step) * spec.batch_size
                done = progress.epoch + 1, progress.step, progress.global_step
                self._report(log, StepReport(*done, terms, rate, speed, self.task.unit), diagnostics)
            due = clock.checkpoint_is_due(spec.checkpoint_every_s)
            if self._agree(due, may_wait=has_line):
                self._read({})
                self.checkpoint()
                clock.checkpoint_written()

    def take(self, batch: Any, phase: int) -> Step:
        """Take one step: forward and backward pass, clipping and optimiser."""
        step = self.task.step(self.wrapped, batch, phase)
        loss = step.terms["loss"]
        self.optimizer.zero_grad()
        (loss if self.accelerator.scaler is None else self.accelerator.scaler.scale(loss)).backward()
        if self.recipe.training.clip_norm is not None:
            self.accelerator.clip_grad_norm_([p for _, p in self.trainable], self.recipe.training.clip_norm)
        self.optimizer.step()
        return step

    def _note(self, step: Step) -> None:
        """Note the loss of a step without waiting for it, and let the mean of the weights follow."""
        number = self.progress.global_step
        collapsed = (step.at_collapse(),) if self.collapse.is_due(number) else ()
        terms = {name: value.detach() for name, value in step.terms.items()}
        self._unread.append((number + 1, step.description, terms, collapsed))
        if self.average is not None:
            self.average.update()

    def _read(self, more: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, float]]:
        """Read the losses of the steps since the last time, waiting once for the device.

        Returns:
            The terms of the last step, and ``more`` as numbers.
        """
        steps, self._unread = self._unread, []
        numbers = [number for _, _, terms, collapsed in steps for number in (terms["loss"], *collapsed)]
        last = steps[-1][2] if steps else {}
        asked = [*numbers, *last.values(), *more.values()]
        values = iter(torch.stack([each.detach() for each in asked]).tolist() if asked else [])
        for number, description, _, collapsed in steps:
            loss = next(values)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss is {loss} at step {number} on {description}: check the features for NaN, "
                    f"lower optimizer.learning_rate or set training.precision=fp32 (the last checkpoint is kept)"
                )
            self.progress.loss_sum += loss
            for at_collapse in islice(values, len(collapsed)):
                if warning := self.collapse.update(loss, at_collapse):
                    self.watcher.warn(warning)
        return dict(zip(last, values, strict=False)), dict(zip(more, values, strict=True))

    def _finish_epoch(self, log: MetricsLog | None) -> None:
        """Validate, keep the best, and write the checkpoint from which the next epoch starts."""
        progress = self.progress
        mean_loss = progress.loss_sum / max(progress.step, 1)
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0
        with nullcontext() if self.average is None else self.average.in_place():
            self._judge(log, mean_loss)
        self.checkpoint()

    def _judge(self, log: MetricsLog | None, mean_loss: float) -> None:
        """Validate the present model, keep it if it is the best, and report and log its metrics."""
        progress, plateau = self.progress, self.recipe.training.plateau
        validated = [self.task.validate()]
        broadcast_object_list(validated)  # one process decides, since the learning rate may depend on them
        (metrics,) = validated
        best = metrics[self.task.metric] > progress.best_score
        if self.begun is not None and log is not None:
            self.begun.offer(progress.epoch, metrics)
        if best:
            progress.best_score, progress.best_epoch = metrics[self.task.metric], progress.epoch
        if plateau is not None:
            progress.plateau = progress.plateau.after(metrics[plateau.metric], plateau)
        if log is None:  # not the main process
            return
        if best:
            self._keep(metrics)
        log.write("validation", progress.epoch, progress.global_step, metrics)
        if curves := self.task.curves():
            log.note("curves", progress.epoch, progress.global_step, curves)
        memory = peak_memory(self.accelerator.device)
        cost = {"seconds": progress.seconds} | ({} if memory is None else {"memory_bytes": memory})
        log.note("time", progress.epoch, progress.global_step, cost)
        summary = self.task.summary(metrics)
        self.watcher.epoch(EpochReport(progress.epoch, mean_loss, metrics, best, progress.seconds, summary))
        if self.begun is not None and progress.epoch == self.schedule.num_epochs:
            self.begun.conclude(log, progress)

    def _keep(self, metrics: Mapping[str, float]) -> None:
        """Save the model as the best so far."""
        reached = {"epoch": self.progress.epoch, "metrics": metrics, "intervals": self.task.intervals}
        if split := self.task.splits.get("validation"):
            reached["data"] = split.values()
        self.model.provenance["validation"] = reached
        if self.begun is not None:
            self.model.provenance["start"] = self.begun.provenance()
        self.task.calibrate(self.model)
        self.model.save(self.folder / BEST, alone=True)

    def _measure_start(self, begun: FromStart, log: MetricsLog | None) -> None:
        """Measure the start in one process before training, and send its score to the others."""
        random = _random_state()
        score = [None if log is None else begun.measure(log)]
        _set_random_state(random)
        broadcast_object_list(score)
        if score[0] is not None:
            self.progress.best_score, self.progress.best_epoch = score[0], 0

    def _enter_phase(self, epoch: int, log: MetricsLog | None) -> None:
        """Announce a phase that begins, and copy the values that the previous objective learned (a temperature)."""
        index = self.schedule.phase_index(epoch)
        begins = index and self.schedule.phase_index(epoch - 1) < index and self.progress.step == 0
        if not begins:
            return
        self.watcher.note(announcement(self.recipe, index))
        if log is not None:
            sets = {key: new for key, (_, new) in phase_changes(self.recipe, index).items()}
            # The settings are valid from the next step on. A run resumed before it announces them again.
            begins_at = epoch + 1, self.progress.global_step + 1
            log.note("phase", *begins_at, {"phase": index + 1, "sets": sets})
        if len(self.objectives):
            self.objectives[index].load_state_dict(self.objectives[index - 1].state_dict(), strict=False)

    def _report(self, log: MetricsLog | None, step: StepReport, diagnostics: dict[str, float]) -> None:
        if log is not None:
            pace = {"learning_rate": step.learning_rate, "images_per_s": step.images_per_s}
            log.write("train", step.epoch, step.global_step, {**step.terms, **pace})
            if diagnostics:
                log.write("diagnostics", step.epoch, step.global_step, diagnostics)
        self.watcher.step(step)

    def _agree(self, due: bool, *, may_wait: bool) -> bool:
        """Return whether a checkpoint is due in any process. Clocks differ, but all processes must write together."""
        if self.accelerator.num_processes == 1:
            return due
        if not may_wait:
            return False
        votes = torch.tensor(int(due), device=self.accelerator.device)
        return int(self.accelerator.reduce(votes, reduction="sum")) > 0

    def checkpoint(self, folder: Path | None = None) -> None:
        """Write a checkpoint into the folder of the run, or into another folder. Every process calls it."""
        random: list[dict[str, Any]] = gather_object([_random_state()])
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            state = {
                "model": self.model.state_dict(),
                "objectives": self.objectives.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": {} if scaler is None else scaler.state_dict(),
                "random": random,
                "data": {name: asdict(split) for name, split in self.task.splits.items()},
                **({} if self.average is None else {"average": self.average.state()}),
                **({} if self.begun is None else {"start": self.begun.state()}),
            }
            sync(self.folder / METRICS)  # with every record up to the checkpoint
            save_checkpoint((folder or self.folder) / CHECKPOINT, self.progress, state)


def _random_state() -> dict[str, Any]:
    """Return the random states that dropout and size augmentation use. The order of the data has none."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@dataclass(frozen=True)
class Measured:
    """The results of a model on validation after an epoch, with the metrics on every resample. Epoch 0 is the start."""

    epoch: int
    metrics: Mapping[str, float]
    replicates: Mapping[str, Float[np.ndarray, "R"]]


class FromStart:
    """Compares the start of a run with its best epoch so far, in the process that validates.

    ``before`` is None if the start was not measured. ``after`` may be worse than the start.
    """

    def __init__(self, start: Start, task: AnyTask, folder: Path, watcher: Watcher) -> None:
        self.start, self.task, self.folder, self.watcher = start, task, folder, watcher
        self.before: Measured | None = None
        self.after: Measured | None = None

    def measure(self, log: MetricsLog) -> float | None:
        """Measure the start, make it the best model so far, and return its score, or None if it cannot be measured."""
        model = self.start.model
        try:
            metrics = self.task.validate_start(model)
        except OpenVSEError as error:
            self.watcher.note(f"before: the start is not measured on validation: {error}")
            return None
        finally:
            model.to("cpu")
        self.before = Measured(0, metrics, dict(self.task.replicates))
        self.watcher.note(f"before: {self.task.summary(metrics)}")
        log.write("before", 0, 0, metrics)
        if self.start is self.task.start:
            reached = {"epoch": 0, "metrics": metrics, "intervals": self.task.intervals}
            model.provenance["validation"] = reached
        self.task.calibrate(model)
        model.save(self.folder / "best", alone=True)
        return metrics[self.task.metric]

    def offer(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Record the validation of an epoch. The best one is the result after training."""
        metric = self.task.metric
        if self.after is None or metrics[metric] > self.after.metrics[metric]:
            self.after = Measured(epoch, metrics, dict(self.task.replicates))

    def provenance(self) -> dict[str, Any]:
        """Return the record of a model's start, and the changes since then, for its folder."""
        return {**self.start.provenance(), "changes": _record(self._differences())}

    def conclude(self, log: MetricsLog, progress: Progress) -> None:
        """Report and write the results before and after and their difference, at the end of a run."""
        if self.after is None or not (differences := self._differences()):
            return
        changes = {name: each.change for name, each in differences.items()}
        bounds = {
            f"{name}_{side}": bound
            for name, each in differences.items()
            for side, bound in zip(("low", "high"), each.interval, strict=True)
        }
        log.write("difference", progress.epoch, progress.global_step, {**changes, **bounds})
        written = {"start": self.start.provenance(), "best_epoch": progress.best_epoch, "metrics": _record(differences)}
        table = _table(differences, self.after.epoch)
        write_report(
            self.folder,
            "before_after",
            markdown=f"# Before and after\n\n{table.to_markdown()}\n",
            json=json.dumps(written, indent=2) + "\n",
        )
        self.watcher.note(table.to_text())
        metric = self.task.metric
        if progress.best_epoch == 0 and metric in differences:
            self.watcher.warn(
                f"no epoch is above the start ({metric} {differences[metric].first:.1f}, the best epoch "
                f"{differences[metric].second:.1f}): best/ keeps the start. "
                f"Lower optimizer.learning_rate, train fewer parts, or give more data"
            )

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {
            name: asdict(side)
            | {"replicates": {key: torch.from_numpy(row.copy()) for key, row in side.replicates.items()}}
            for name, side in (("before", self.before), ("after", self.after))
            if side is not None
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``."""
        for name, side in state.items():
            rows = {key: row.numpy() for key, row in side["replicates"].items()}
            setattr(self, name, Measured(side["epoch"], side["metrics"], rows))

    def _differences(self) -> dict[str, Difference]:
        """Return the change of each metric with replicates on both sides. It is empty before both are measured."""
        if self.before is None or self.after is None:
            return {}
        one, other = (dict(sorted(each.replicates.items())) for each in (self.before, self.after))
        return paired_differences(self.before.metrics, self.after.metrics, one, other)


def _record(differences: Mapping[str, Difference]) -> dict[str, Any]:
    """Return differences as plain values, for a file and for a model's provenance."""
    return {
        name: {"before": each.first, "after": each.second, "difference": each.change, "interval": list(each.interval)}
        for name, each in differences.items()
    }


def _table(differences: Mapping[str, Difference], epoch: int) -> Table:
    """Return the differences as a table that fits into a terminal of 80 columns."""
    rows = [
        [
            metric_title(name),
            f"{differences[name].first:.1f}",
            f"{differences[name].second:.1f}",
            f"{differences[name].change:+.1f}",
            "{:+.1f} to {:+.1f}".format(*differences[name].interval),
        ]
        for name in (*metric_names(), "accuracy")
        if name in differences
    ]
    header = ["validation", "before", f"after (epoch {epoch})", "difference", f"{CONFIDENCE:.0%} interval"]
    return Table(header, rows)
