"""The ``openvse`` command."""

from __future__ import annotations

from openvse.cli.app import main

__all__ = ["main"]
