"""Building: the only place that sees every kind of part."""

from __future__ import annotations

from openvse.build.answerer import build_answerer
from openvse.build.load import load, load_answerer, load_model
from openvse.build.model import build_model
from openvse.build.objective import build_objective
from openvse.build.parts import build_part

__all__ = [
    "build_answerer",
    "build_model",
    "build_objective",
    "build_part",
    "load",
    "load_answerer",
    "load_model",
]
