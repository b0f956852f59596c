"""Runs on a page or in a table: their training, progress and results."""

from __future__ import annotations
