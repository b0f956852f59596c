"""Layers that several parts share."""

from __future__ import annotations
