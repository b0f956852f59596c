"""Conversion of the published checkpoints of other projects to model folders. No code in them is run."""

from __future__ import annotations

from openvse.conversion.convert import Conversion, convert
from openvse.conversion.repositories import REPOSITORIES

__all__ = ["REPOSITORIES", "Conversion", "convert"]
