"""Models: two towers, or an answerer; their folder on disk, and the hub."""

from __future__ import annotations

from openvse.model.answerer import ANSWERS_FILE, Answered, Answerer, Attended, Guess
from openvse.model.base import Model
from openvse.model.folder import read_config, read_weights, write_model
from openvse.model.mode import evaluating
from openvse.model.tower import Tower
from openvse.model.two_tower import TwoTower, embed

__all__ = [
    "ANSWERS_FILE",
    "Answered",
    "Answerer",
    "Attended",
    "Guess",
    "Model",
    "Tower",
    "TwoTower",
    "embed",
    "evaluating",
    "read_config",
    "read_weights",
    "write_model",
]
