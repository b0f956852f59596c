"""Training: the loop, its checkpoints and its records."""

from __future__ import annotations

from openvse.training.checkpoint import Progress
from openvse.training.records import EpochReport, Silent, StepReport, Watcher

__all__ = ["EpochReport", "Progress", "Silent", "StepReport", "Watcher"]
