"""Models: their parts, their folder on disk, and the hub."""

from __future__ import annotations

from openvse.model.base import Model
from openvse.model.calibration import CALIBRATION, Calibration, CalibrationData
from openvse.model.folder import ModelConfig, read_config, read_weights
from openvse.model.joined import JoinedMember, assemble, join, joined_members
from openvse.model.mode import evaluating
from openvse.model.start import Origin, Start, take_weights
from openvse.model.tower import Tower, tower_curves
from openvse.model.two_tower import TwoTower, embed

__all__ = [
    "CALIBRATION",
    "Calibration",
    "CalibrationData",
    "JoinedMember",
    "Model",
    "ModelConfig",
    "Origin",
    "Start",
    "Tower",
    "TwoTower",
    "assemble",
    "embed",
    "evaluating",
    "join",
    "joined_members",
    "read_config",
    "read_weights",
    "take_weights",
    "tower_curves",
]
