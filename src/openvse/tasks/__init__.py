"""The tasks by name, and what every task can do: load a model, train, evaluate."""

from __future__ import annotations
