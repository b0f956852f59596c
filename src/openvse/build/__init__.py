"""Building: the only place that sees every kind of part."""

from __future__ import annotations

from openvse.build.model import build_model, load_model
from openvse.build.objective import build_objective
from openvse.build.parts import build_part

__all__ = ["build_model", "build_objective", "build_part", "load_model"]
