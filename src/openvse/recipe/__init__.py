"""Recipes: the YAML that decides a run."""

from __future__ import annotations

from openvse.recipe.load import (
    apply_override,
    describe,
    list_recipes,
    load_recipe,
    parse_override,
    parse_recipe,
)
from openvse.recipe.schema import (
    DataSpec,
    OptimizerSpec,
    Part,
    PhaseSpec,
    PlateauSpec,
    Published,
    Recipe,
    TowerSpec,
    TrainingSpec,
)

__all__ = [
    "DataSpec",
    "OptimizerSpec",
    "Part",
    "PhaseSpec",
    "PlateauSpec",
    "Published",
    "Recipe",
    "TowerSpec",
    "TrainingSpec",
    "apply_override",
    "describe",
    "list_recipes",
    "load_recipe",
    "parse_override",
    "parse_recipe",
]
