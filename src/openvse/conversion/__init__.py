"""Published checkpoints of other projects -> model folders; nothing that they contain is run."""

from __future__ import annotations

from openvse.conversion.convert import REPOSITORIES, Conversion, convert

__all__ = ["REPOSITORIES", "Conversion", "convert"]
