"""Lists of the parts with their options, and of the keys of a recipe, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from openvse.registry import Maker, Registry

DECIDED = {
    "input_dim",
    "embed_dim",
    "side",
    "assets",
    "captions",
    "position_dim",
    "hidden_dim",
    "num_positions",
}
"""Arguments of parts that the assembly sets, and that no recipe can set."""


def registries() -> list[Registry[Any]]:
    """Return the registries of everything that a recipe may name, in the order in which ``openvse parts`` lists it."""
    from openvse.aggregators import AGGREGATORS, GENERATORS, POSITIONS
    from openvse.backbones import BACKBONES
    from openvse.datasets import DATASETS
    from openvse.encoders import AUGMENTATIONS, GLOBAL_VECTORS, PROJECTIONS, TEXT_ENCODERS, WORD_SPLITTERS
    from openvse.fusion import FUSIONS
    from openvse.objectives import CRITERIA, MINERS, TERMS
    from openvse.similarities import SIMILARITIES

    images = (BACKBONES, PROJECTIONS, AUGMENTATIONS, GLOBAL_VECTORS)
    poolings = (AGGREGATORS, GENERATORS, POSITIONS, FUSIONS)
    return [
        *images,
        TEXT_ENCODERS,
        WORD_SPLITTERS,
        *poolings,
        SIMILARITIES,
        TERMS,
        MINERS,
        CRITERIA,
        DATASETS,
    ]


def options_of(part: Maker[Any]) -> dict[str, str]:
    """Return the options of a part, each with its type and its default, as text."""
    from openvse.assembly.parts import option_types, parameters

    types = option_types(part)
    return {
        name: f"{_type(types[name])}{_default(types[name], parameter.default, parameter.empty)}"
        for name, parameter in parameters(part).items()
        if name not in DECIDED
    }


def first_line(part: Maker[Any]) -> str:
    """Return the first line of a part's docstring."""
    doc = getattr(part, "func", part).__doc__ or "(without a docstring)"
    return doc.strip().partition("\n")[0].replace("``", "")


def described(name: str) -> Iterator[str]:
    """Yield lines on every part of a name: kind, purpose, options; raise RecipeError if there is none."""
    from openvse.encoders import ImageEncoder
    from openvse.errors import RecipeError, choices, nearest

    parts = [registry for registry in registries() if registry.kind != "data set"]
    having = [registry for registry in parts if name in registry.names()]
    if not having:
        names = sorted({each for registry in parts for each in registry.names()})
        raise RecipeError(f"unknown part {name!r}{nearest(name, names)}{choices(names, 'openvse parts')}")
    for registry in having:
        part = registry.get(name)
        yield f"{registry.kind} {name}: {first_line(part)}"
        yield from (f"  {key}: {says}" for key, says in options_of(part).items())
        if registry.kind == "backbone":
            yield "  options of the image encoder around the backbone, in a recipe's image.encoder:"
            around = options_of(ImageEncoder)
            yield from (f"  {key}: {says}" for key, says in around.items() if key != "backbone")


def recipe_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a resolved recipe, as overrides name them, with their values."""
    for key, value in tree.items():
        if "." in key:  # an override of the objective in one phase
            continue
        yield f"{prefix}{key}", value
        below = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(below, Mapping):
            yield from recipe_keys({str(k): v for k, v in below.items()}, f"{prefix}{key}.")


def _type(hint: Any) -> str:
    """Return the type of an option as text; that of a part inside a part lists the names of its kind."""
    from openvse.assembly.parts import part_inside

    inside = part_inside(hint)
    if inside is not None:
        return f"one of {inside[0].names()}" + (" or None" if type(None) in get_args(hint) else "")
    named = isinstance(hint, type) and not get_args(hint)
    text = hint.__name__ if named else str(hint)
    return text.replace("Literal", "one of ").replace("typing.", "").replace("collections.abc.", "")


def _default(hint: Any, value: Any, missing: Any) -> str:
    from openvse.assembly.parts import part_inside

    if value is missing:
        return ", required"
    inside, made_by = part_inside(hint), getattr(value, "func", value)
    name = inside[0].name_of(made_by) if inside and callable(made_by) else None
    shown = name or getattr(made_by, "__name__", None)
    return f", default {shown or repr(value)}"
