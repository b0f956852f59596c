"""The probability of dropout, as options of several parts give it."""

from __future__ import annotations

from openvse.errors import RecipeError


def checked_dropout(dropout: float) -> float:
    """Return a probability of dropout; raise RecipeError if it is not in [0, 1)."""
    if not 0 <= dropout < 1:
        raise RecipeError(f"dropout is {dropout}: give a probability from 0 up to, but not including, 1")
    return dropout
