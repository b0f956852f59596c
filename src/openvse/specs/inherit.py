"""What a recipe with a start takes from the spec of the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openvse.errors import RecipeError
from openvse.specs.load import merged

FROM_START = "start"
"""The value in a recipe of a side or a part that comes from the start; leaving the key out means the same."""

GATED = "gated"
"""The aggregator that adds a pooling to another one, its ``base``; in a recipe with a start, that is the start's."""

_SIDES = ("image", "text")
_PARTS = ("encoder", "aggregator")


def is_complete(tree: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Return whether a recipe describes its whole model, so that the spec of a start is not needed.

    Args:
        tree: the recipe.
        fields: the fields of the spec of its task.
    """
    for field in fields:
        said = tree.get(field, FROM_START)
        if said == FROM_START:
            return False
        if field in _SIDES and isinstance(said, Mapping) and not _own(said):
            return False
    return True


def inherited(
    tree: Mapping[str, Any], spec: Mapping[str, Any], fields: Iterable[str], start: str
) -> dict[str, Any]:
    """Return a recipe whose gaps are filled from the spec of its start.

    A part with a name is the recipe's own. A part that is left out, or called ``start``, is the start's; options
    without a name change those of the start's part. The aggregator ``gated`` is the recipe's own, and its ``base`` is a
    part in the same sense.

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
            filled[field] = _side(field, tree.get(field, FROM_START), spec.get(field), start, taken)
        elif tree.get(field, FROM_START) == FROM_START:
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
    needed = said == FROM_START or (isinstance(said, Mapping) and not _own(said))
    if needed and not isinstance(theirs, Mapping):
        raise RecipeError(f"recipe: {side} is that of {start}, which has no {side} side: name its parts")
    if said == FROM_START:
        taken += [f"{side}.{part}" for part in _PARTS]
        return theirs
    if not isinstance(said, Mapping):
        return said
    filled = dict(said)
    for part in _PARTS:
        wanted = said.get(part, FROM_START)
        wanted = {"name": GATED} if wanted == GATED else wanted
        if wanted == FROM_START:
            filled[part] = theirs[part]
            taken.append(f"{side}.{part}")
        elif not _names_itself(wanted):
            filled[part] = (
                _gated(wanted, theirs[part])
                if wanted.get("name") == GATED
                else merged({part: theirs[part]}, {part: wanted})[part]
            )
            taken.append(f"{side}.{part}")
    return filled


def _gated(wanted: Mapping[str, Any], theirs: Any) -> Any:
    """Put the start's aggregator into the place of the base; if it is the same one around a base, it is taken whole."""
    if _without_base(wanted) == _without_base(theirs):
        return theirs
    return {**wanted, "base": theirs}


def _without_base(part: Any) -> dict[str, Any]:
    options = {"name": part} if isinstance(part, str) else part
    plain = {
        key: value["name"] if isinstance(value, Mapping) and value.keys() == {"name"} else value
        for key, value in options.items()
    }
    return {key: value for key, value in plain.items() if key != "base"}


def _own(said: Mapping[str, Any]) -> bool:
    """Return whether a recipe names both parts of a side by itself."""
    return all(_names_itself(said.get(part, FROM_START)) for part in _PARTS)


def _names_itself(part: Any) -> bool:
    """Return whether a recipe describes a part without its start."""
    if part == GATED:
        return False
    if not isinstance(part, Mapping):
        return bool(part != FROM_START)
    return "name" in part and (part["name"] != GATED or part.get("base", FROM_START) != FROM_START)
