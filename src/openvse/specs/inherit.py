"""What a recipe with a start takes from the spec of the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openvse.errors import RecipeError
from openvse.specs.load import merged

START = "start"
"""The value in a recipe of a side or a part that comes from the start; leaving the key out means the same."""

_SIDES = ("image", "text")
_PARTS = ("encoder", "aggregator")


def is_complete(tree: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Return whether a recipe describes its whole model, so that the spec of a start is not needed.

    Args:
        tree: the recipe.
        fields: the fields of the spec of its task.
    """
    for field in fields:
        said = tree.get(field, START)
        if said == START:
            return False
        if field in _SIDES and isinstance(said, Mapping):
            parts = [said.get(part, START) for part in _PARTS]
            if START in parts or any(isinstance(part, Mapping) and "name" not in part for part in parts):
                return False
    return True


def inherited(
    tree: Mapping[str, Any], spec: Mapping[str, Any], fields: Iterable[str], start: str
) -> dict[str, Any]:
    """Return a recipe whose gaps are filled from the spec of its start.

    A part with a name is the recipe's own. A part that is left out, or called ``start``, is the start's; options
    without a name change those of the start's part.

    Args:
        tree: the recipe.
        spec: the spec of the start.
        fields: the fields of the spec of the recipe's task; those that the task of the start lacks keep their default.
        start: the name of the start, for messages.

    Raises:
        RecipeError: the recipe asks for something that the start does not have, or for a part of it at another width.
    """
    filled = dict(tree)
    taken: list[str] = []
    for field in fields:
        if field in _SIDES:
            filled[field] = _side(field, tree.get(field, START), spec.get(field), start, taken)
        elif tree.get(field, START) == START:
            if field in spec:
                filled[field] = spec[field]
            elif field in tree:
                raise RecipeError(f"recipe: {field} is 'start', and {start} has no {field}: name one")
    width, own = filled.get("embed_dim"), spec.get("embed_dim")
    if taken and width != own:
        raise RecipeError(
            f"recipe: embed_dim is {width}, and {taken[0]}, which is that of {start}, was made for {own}: leave "
            f"embed_dim out, or name the parts of both sides: a named part begins anew where its width differs"
        )
    return filled


def _side(side: str, said: Any, theirs: Any, start: str, taken: list[str]) -> Any:
    """Return a side of the model, and note in ``taken`` which of its parts are the start's as they are."""
    needed = said == START or (isinstance(said, Mapping) and not _own(said))
    if needed and not isinstance(theirs, Mapping):
        raise RecipeError(f"recipe: {side} is that of {start}, which has no {side} side: name its parts")
    if said == START:
        taken += [f"{side}.{part}" for part in _PARTS]
        return theirs
    if not isinstance(said, Mapping):
        return said
    filled = dict(said)
    for part in _PARTS:
        wanted = said.get(part, START)
        if wanted == START:
            filled[part] = theirs[part]
            taken.append(f"{side}.{part}")
        elif isinstance(wanted, Mapping) and "name" not in wanted:
            filled[part] = merged({part: theirs[part]}, {part: wanted})[part]
            taken.append(f"{side}.{part}")
    return filled


def _own(said: Mapping[str, Any]) -> bool:
    """Return whether a recipe names both parts of a side by itself."""
    parts = [said.get(part, START) for part in _PARTS]
    return all(part != START and not (isinstance(part, Mapping) and "name" not in part) for part in parts)
