"""Recipes of every task: read, merged and checked against the task's own schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openvse.errors import RecipeError, nearest
from openvse.specs import RunRecipe, read_recipe, validated
from openvse.tasks import TASKS, kind_of


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> RunRecipe:
    """Read a recipe of any task, merge it over its base, apply overrides and check every key.

    Args:
        source: a YAML file, or the name of a shipped recipe.
        overrides: ``key.path=value`` each, with the value in YAML; ``training.phases.0.epochs=2`` changes a list item.

    Raises:
        RecipeError: there is no such recipe, it is not YAML, a key is unknown, or a value is out of range.
    """
    return parse_recipe(read_recipe(source, overrides))


def parse_recipe(tree: Mapping[str, Any]) -> RunRecipe:
    """Check a recipe given as nested mappings; an error gives the path and the nearest key."""
    task = tree.get("task", "retrieval")
    if not isinstance(task, str) or task not in TASKS:
        close = nearest(str(task), TASKS.names())
        raise RecipeError(f"recipe: task is {task!r}{close} (allowed: {', '.join(TASKS)})")
    return validated(kind_of(task).recipe, tree)
