"""Serving: an index and its models as a web interface for programs, and as a page for people."""

from __future__ import annotations

from openvse.serving.settings import Limits, Settings

__all__ = ["Limits", "Settings"]
