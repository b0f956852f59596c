"""Completion in the shell: names of recipes, parts and data sets, and the keys of overrides.

``openvse --install-completion`` sets up the shell. Heavy modules are imported when the shell asks for a completion.
Typer selects the names that begin with the typed letters.
"""

from __future__ import annotations

from typing import Any

import typer

from openvse.errors import OpenVSEError
from openvse.train_cli.listing import options_of, recipe_keys


def complete_recipe() -> list[str]:
    """Complete the name of a shipped recipe."""
    from openvse.specs.load import list_recipes

    return list_recipes()


def complete_listed(ctx: typer.Context) -> list[str]:
    """Complete a NAME of ``openvse list``: a recipe, a part or a data set, by the kind before it."""
    from openvse.tasks.front import registries

    if (kind := ctx.params.get("kind")) == "parts":
        return sorted({name for registry in registries() for name in registry.names()})
    completed = {"recipes": complete_recipe, "data": complete_data_set}
    return completed[str(kind)]() if kind in completed else []


def complete_encoder() -> list[str]:
    """Complete the encoder of ``openvse extract``: a backbone, or a text encoder whose token states can be stored."""
    from openvse.backbones import BACKBONES
    from openvse.encoders import TEXT_ENCODERS
    from openvse.encoders.transformers_text import TransformersText

    texts = [
        name
        for name in TEXT_ENCODERS.names()
        if isinstance(part := TEXT_ENCODERS.get(name), type) and issubclass(part, TransformersText)
    ]
    return sorted([*BACKBONES.names(), *texts])


def complete_data_set() -> list[str]:
    """Complete the name of a data set."""
    from openvse.datasets import DATASETS

    return DATASETS.names()


def complete_override(ctx: typer.Context) -> list[str]:
    """Complete the key of an override. The options of the recipe's parts are keys, too."""
    from openvse.tasks.recipes import shown_recipe

    try:
        tree = shown_recipe(str(ctx.params.get("recipe")))
    except OpenVSEError:
        return []
    return [f"{each}=" for each in sorted(_keys(tree))]


def _keys(tree: dict[str, Any]) -> set[str]:
    """Return the keys of a recipe, and the keys of its parts' options that the recipe does not set."""
    from openvse.encoders import ImageEncoder
    from openvse.tasks.front import registries

    given = dict(recipe_keys(tree))
    keys = {key for key in given if not key.endswith(".name")}
    for key in [*keys]:
        value = given[key]
        name = value.get("name") if isinstance(value, dict) else value
        for registry in registries() if isinstance(name, str) else ():
            if registry.kind in _kinds(key) and name in registry:
                keys |= {f"{key}.{option}" for option in options_of(registry.get(str(name)))}
        if key == "image.encoder":
            keys |= {f"{key}.{option}" for option in options_of(ImageEncoder) if option != "backbone"}
    return keys


def _kinds(key: str) -> set[str]:
    """Return the kinds of the parts that a key accepts. Most keys are named after the kind."""
    if (last := key.removesuffix(".name").rpartition(".")[2]) == "encoder":
        return {"text encoder" if key.startswith("text.") else "backbone"}
    if key.startswith("objective.") and key.removesuffix(".name").count(".") == 1:
        return {"objective term"}
    return {last, last.replace("_", " ")}
