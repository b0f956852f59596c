"""A run that starts from a model: the start is measured first, and kept if training does not improve it.

The results of both are reported with their difference and its interval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from openvse.errors import OpenVSEError
from openvse.evaluation.comparison import Difference, paired_differences
from openvse.evaluation.report import metric_title
from openvse.model.start import Start
from openvse.output.documents import CONFIDENCE, write_report
from openvse.output.table import Table
from openvse.training.checkpoint import Progress
from openvse.training.records import MetricsLog, Watcher
from openvse.training.task import AnyTask

_SHOWN = ("rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "accuracy")


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

    def measure(self, log: MetricsLog | None) -> float | None:
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
        if log is not None:
            log.write("before", 0, 0, metrics)
        if self.start is self.task.start:
            model.provenance["validation"] = {
                "epoch": 0,
                "metrics": metrics,
                "intervals": self.task.intervals,
            }
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

    def conclude(self, log: MetricsLog | None, progress: Progress) -> None:
        """Report and write the results before and after and their difference, at the end of a run."""
        if self.after is None or not (differences := self._differences()):
            return
        changes = {name: each.change for name, each in differences.items()}
        bounds = {
            f"{name}_{side}": bound
            for name, each in differences.items()
            for side, bound in zip(("low", "high"), each.interval, strict=True)
        }
        if log is not None:
            log.write("difference", progress.epoch, progress.global_step, {**changes, **bounds})
        written = {
            "start": self.start.provenance(),
            "best_epoch": progress.best_epoch,
            "metrics": _record(differences),
        }
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
            name: {
                "epoch": side.epoch,
                "metrics": dict(side.metrics),
                "replicates": {key: torch.from_numpy(row.copy()) for key, row in side.replicates.items()},
            }
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
        name: {
            "before": each.first,
            "after": each.second,
            "difference": each.change,
            "interval": list(each.interval),
        }
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
        for name in _SHOWN
        if name in differences
    ]
    header = ["validation", "before", f"after (epoch {epoch})", "difference", f"{CONFIDENCE:.0%} interval"]
    return Table(header, rows)
