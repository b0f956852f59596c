"""Recipes of every task: read, merged and checked against the task's own schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openvse.errors import RecipeError, nearest
from openvse.specs import RunRecipe
from openvse.specs.load import FROM_START, Overrides, inherited, is_complete, read_recipe, validated
from openvse.tasks import TASKS, task_kind

START = "start"
"""The folder of a run that keeps the model that it began from."""


def load_recipe(source: str | Path, overrides: Overrides = (), *, copy: Path | None = None) -> RunRecipe:
    """Read a recipe of any task, merge it over its base, apply overrides and check every key.

    Args:
        source: a YAML file, or the name of a shipped recipe.
        overrides: ``key.path=value``, with the value in YAML, or several, or values by their keys.
            ``training.phases.0.epochs=2`` changes a list item.
        copy: the copy of the start in the folder of the run, for a run that is resumed.

    Raises:
        RecipeError: there is no such recipe, it is not YAML, a key is unknown, or a value is out of range.
        ModelError: the model that it begins from is missing.
    """
    return parse_recipe(read_recipe(source, overrides), copy=copy)


def parse_recipe(tree: Mapping[str, Any], *, copy: Path | None = None) -> RunRecipe:
    """Check a recipe in the form of nested mappings. An error gives the path and the nearest key.

    Anything that a recipe with a ``start`` omits about its model is filled in from the spec of the start. ``copy`` is
    the run's own copy of the start, which is read instead if it exists.
    """
    task = tree.get("task", "retrieval")
    if not isinstance(task, str) or task not in TASKS:
        close = nearest(str(task), TASKS.names())
        raise RecipeError(f"recipe: task is {task!r}{close} (allowed: {', '.join(TASKS)})")
    kind = task_kind(task)
    if _begins_from_model(tree):
        tree = _filled(tree, tuple(kind.spec.model_fields), copy)
    elif "image" not in tree and "text" not in tree:
        raise RecipeError(
            f"recipe {tree.get('name', '')} has neither image nor text: name its parts, or a model to begin "
            f"from (--start MODEL, or start: MODEL in the recipe)"
        )
    return validated(kind.recipe, tree)


def shown_recipe(source: str | Path) -> dict[str, Any]:
    """Return all keys of a recipe with their values. ``start`` marks values that the model of a start decides.

    No model is read or fetched.
    """
    tree = read_recipe(source)
    task = tree.get("task", "retrieval")
    is_whole = not _begins_from_model(tree) and ("image" in tree or "text" in tree)
    if is_whole or task not in TASKS:
        return parse_recipe(tree).to_dict()
    kind = task_kind(task)
    side = {"encoder": FROM_START, "aggregator": FROM_START}
    filled = inherited(tree, {"image": side, "text": side}, ("image", "text"), FROM_START)
    shown = validated(kind.recipe, filled).to_dict()
    return shown | {field: FROM_START for field in kind.spec.model_fields if field not in filled}


def _begins_from_model(tree: Mapping[str, Any]) -> bool:
    """Return whether a recipe names a model as its start, which may decide the keys that the recipe omits."""
    return not isinstance(tree.get("start"), Mapping) and tree.get("start") not in (None, "")


def _filled(tree: Mapping[str, Any], fields: Sequence[str], copy: Path | None) -> Mapping[str, Any]:
    """Fill in the omitted keys of a recipe from the spec of the model that it begins from."""
    if is_complete(tree, fields):
        return tree
    from openvse.model.base import WEIGHTS, read_config
    from openvse.tasks.load import folder_of_model

    start = str(tree["start"])
    is_copied = copy is not None and (copy / WEIGHTS).is_file()  # the file that is written last
    folder = copy if copy is not None and is_copied else folder_of_model(start)
    return inherited(tree, read_config(folder).spec, fields, start)
