"""Training: the loop, its checkpoints and its records."""

from __future__ import annotations

from openvse.training.checkpoint import Progress
from openvse.training.records import EpochReport, Silent, StepReport, Watcher
from openvse.training.run import RunResult, train

__all__ = ["EpochReport", "Progress", "RunResult", "Silent", "StepReport", "Watcher", "train"]
