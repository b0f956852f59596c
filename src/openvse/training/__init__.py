"""Training: the loop, its schedule, its checkpoints and its records."""

from __future__ import annotations
