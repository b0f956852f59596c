"""A run that starts from a model: the start is measured first, and kept if training does not improve it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openvse.errors import OpenVSEError
from openvse.model import Start
from openvse.output.documents import write_report
from openvse.training.before_after import BeforeAfter, Measured
from openvse.training.checkpoint import Progress
from openvse.training.records import MetricsLog, Watcher
from openvse.training.task import AnyTask


class FromStart:
    """Compares the epochs of a run with the model that it started from, in the process that validates.

    Args:
        start: the model from which the run begins.
        task: the task, which measures models.
        folder: the folder of the run.
        watcher: the object that is notified.

    Attributes:
        compared: the results before and after; part of the checkpoint.
    """

    def __init__(self, start: Start, task: AnyTask, folder: Path, watcher: Watcher) -> None:
        self.start, self.task, self.folder, self.watcher = start, task, folder, watcher
        self.compared = BeforeAfter()

    def measure(self, log: MetricsLog | None) -> float | None:
        """Measure the start, make it the best model so far, and return its score; None if it cannot be measured."""
        model = self.start.model
        try:
            metrics = self.task.validate_start(model)
        except OpenVSEError as error:
            self.watcher.note(f"before: the start is not measured on validation: {error}")
            return None
        finally:
            model.to("cpu")
        self.compared.before = Measured(0, metrics, dict(self.task.replicates))
        self.watcher.note(f"before: {self.task.summary(metrics)}")
        if log is not None:
            log.write("before", 0, 0, metrics)
        self.task.calibrate(model)
        model.save(self.folder / "best")
        return metrics[self.task.metric]

    def offer(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Record the validation of an epoch; the best one is the result after training."""
        after, metric = self.compared.after, self.task.metric
        if after is None or metrics[metric] > after.metrics[metric]:
            self.compared.after = Measured(epoch, metrics, dict(self.task.replicates))

    def give_way(self, progress: Progress) -> None:
        """Empty ``best/`` of a start that is no longer the best model: it may have other files."""
        if progress.best_epoch == 0:
            shutil.rmtree(self.folder / "best", ignore_errors=True)

    def provenance(self) -> dict[str, Any]:
        """Return what a model's folder records about its start and the changes since then."""
        return {**self.start.provenance(), "changes": self.compared.record()}

    def conclude(self, log: MetricsLog | None, progress: Progress) -> None:
        """Report and write the results before and after and their difference, at the end of a run."""
        if not (found := self.compared.differences()):
            return
        changes = {name: each.change for name, each in found.items()}
        bounds = {
            f"{name}_{side}": bound
            for name, each in found.items()
            for side, bound in zip(("low", "high"), each.interval, strict=True)
        }
        if log is not None:
            log.write("difference", progress.epoch, progress.global_step, {**changes, **bounds})
        written = {
            "start": self.start.provenance(),
            "best_epoch": progress.best_epoch,
            "metrics": self.compared.record(),
        }
        write_report(
            self.folder,
            "before_after",
            markdown=f"# Before and after\n\n{self.compared.to_markdown()}\n",
            json=json.dumps(written, indent=2) + "\n",
        )
        self.watcher.note(self.compared.to_text())
        metric = self.task.metric
        if progress.best_epoch == 0 and metric in found:
            self.watcher.warn(
                f"no epoch is above the start ({metric} {found[metric].before:.1f}, the best epoch "
                f"{found[metric].after:.1f}): best/ keeps the start. "
                f"Lower optimizer.learning_rate, train fewer parts, or give more data"
            )
