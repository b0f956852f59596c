"""Models: their parts, their folder on disk, and the hub."""

from __future__ import annotations

from openvse.model.base import Model
from openvse.model.folder import ModelConfig, read_config, read_weights
from openvse.model.start import Origin, Start, take_weights
from openvse.model.tower import Tower, evaluating, tower_curves
from openvse.model.two_tower import TwoTower, embed

__all__ = [
    "Model",
    "ModelConfig",
    "Origin",
    "Start",
    "Tower",
    "TwoTower",
    "embed",
    "evaluating",
    "read_config",
    "read_weights",
    "take_weights",
    "tower_curves",
]
