"""Tiny stand-ins for the models of the hub that recipes name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from encoders.conftest import bert_checkpoint, vision_checkpoint  # noqa: F401 - fixtures
from openvse.specs.load import list_recipes, read_recipe
from openvse.tasks.recipes import load_recipe


@dataclass(frozen=True)
class Checkpoints:
    """Folders in the hub's format: a BERT, and a vision model for each family."""

    text: str
    vision: Callable[[str], str]


@cache
def recipes_without_start() -> dict[str, list[str]]:
    """Return the shipped recipes that name their model, and take it from no other one, by their task."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in list_recipes():
        tree = read_recipe(name)
        if "text" in tree and not isinstance(tree.get("start"), str):
            found[load_recipe(name).task].append(name)
    return found


@pytest.fixture
def checkpoints(bert_checkpoint: str, vision_checkpoint: Callable[[str], str]) -> Checkpoints:  # noqa: F811
    return Checkpoints(bert_checkpoint, vision_checkpoint)
