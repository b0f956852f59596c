"""Exports: a model as files that other runtimes and libraries read."""

from __future__ import annotations

from openvse.exporting.write import Exported, export

__all__ = ["Exported", "export"]
