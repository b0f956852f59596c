"""Training: the loop, the learning-rate schedule, collapse, checkpoints and records."""

from __future__ import annotations
