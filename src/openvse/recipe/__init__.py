"""Recipes: the YAML that decides a run."""

from __future__ import annotations

from openvse.recipe.load import (
    apply_override,
    describe,
    expect_task,
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
    RunRecipe,
    TowerSpec,
    TrainingSpec,
)
from openvse.recipe.vqa import AnswersSpec, HeadSpec, PublishedAccuracy, VQARecipe

__all__ = [
    "AnswersSpec",
    "DataSpec",
    "HeadSpec",
    "OptimizerSpec",
    "Part",
    "PhaseSpec",
    "PlateauSpec",
    "Published",
    "PublishedAccuracy",
    "Recipe",
    "RunRecipe",
    "TowerSpec",
    "TrainingSpec",
    "VQARecipe",
    "apply_override",
    "describe",
    "expect_task",
    "list_recipes",
    "load_recipe",
    "parse_override",
    "parse_recipe",
]
