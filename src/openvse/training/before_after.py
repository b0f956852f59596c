"""The results of a run's start and of the run: before, after, and the difference with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from openvse.evaluation.paired import paired_differences
from openvse.output.documents import CONFIDENCE
from openvse.output.table import Table

_MODELS = ("before", "after")
_SHOWN = ("rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "accuracy")
_TITLES = {"rsum": "RSUM", "i2t": "image to text", "t2i": "text to image"}


@dataclass(frozen=True)
class Measured:
    """The results of a model on the validation split.

    Attributes:
        epoch: the epoch after which the model was measured; 0 is the start.
        metrics: the metrics by name.
        replicates: the metrics on every resample of the bootstrap; all models of a run share the resamples.
    """

    epoch: int
    metrics: Mapping[str, float]
    replicates: Mapping[str, Float[np.ndarray, "R"]]


@dataclass(frozen=True)
class Difference:
    """The change of a metric.

    Attributes:
        before: the metric of the start.
        after: the metric of the best epoch.
        change: after minus before.
        interval: the interval of the change by the paired bootstrap.
    """

    before: float
    after: float
    change: float
    interval: tuple[float, float]


@dataclass
class BeforeAfter:
    """The start and the best trained epoch so far, on the same validation split.

    Attributes:
        before: the start; None if it was not or could not be measured.
        after: the best epoch of training, even if it is worse than the start.
    """

    before: Measured | None = None
    after: Measured | None = None

    def differences(self) -> dict[str, Difference]:
        """Return the change of each metric that has replicates on both sides; it is empty before both are measured."""
        before, after = self.before, self.after
        if before is None or after is None:
            return {}
        names = sorted(before.replicates.keys() & after.replicates.keys())
        one, other = ({name: each.replicates[name] for name in names} for each in (before, after))
        compared = paired_differences(before.metrics, after.metrics, one, other)
        return {
            name: Difference(each.first, each.second, each.change, each.interval)
            for name, each in compared.items()
        }

    def record(self) -> dict[str, Any]:
        """Return the differences as plain values, for a log and for a model's provenance."""
        return {
            name: {
                "before": each.before,
                "after": each.after,
                "difference": each.change,
                "interval": list(each.interval),
            }
            for name, each in self.differences().items()
        }

    def rows(self) -> list[list[str]]:
        """Return the rows of a table: metric, before, after, difference, interval."""
        found = self.differences()
        return [
            [
                _title(name),
                f"{found[name].before:.1f}",
                f"{found[name].after:.1f}",
                f"{found[name].change:+.1f}",
                "{:+.1f} to {:+.1f}".format(*found[name].interval),
            ]
            for name in _SHOWN
            if name in found
        ]

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        return self._table().to_markdown()

    def to_text(self) -> str:
        """Return the table for a terminal of 80 columns."""
        return self._table().to_text()

    def _table(self) -> Table:
        return Table(_header(self.after), self.rows())

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        sides = {name: getattr(self, name) for name in _MODELS}
        return {
            name: {
                "epoch": side.epoch,
                "metrics": dict(side.metrics),
                "replicates": {key: torch.from_numpy(row.copy()) for key, row in side.replicates.items()},
            }
            for name, side in sides.items()
            if side is not None
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        for name in _MODELS:
            if side := state.get(name):
                rows = {key: row.numpy() for key, row in side["replicates"].items()}
                setattr(self, name, Measured(side["epoch"], side["metrics"], rows))


def _header(after: Measured | None) -> Sequence[str]:
    epoch = "" if after is None else f" (epoch {after.epoch})"
    return ["validation", "before", f"after{epoch}", "difference", f"{CONFIDENCE:.0%} interval"]


def _title(metric: str) -> str:
    side, _, k = metric.partition("_r")
    return f"{_TITLES[side]} R@{k}" if k and side in _TITLES else _TITLES.get(metric, metric)
