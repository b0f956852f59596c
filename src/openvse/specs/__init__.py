"""What a model is made of and how it is trained, as data: the schema of recipes, and how they are read."""

from __future__ import annotations

from openvse.specs.load import (
    apply_override,
    describe,
    expect_task,
    list_recipes,
    parse_override,
    read_recipe,
    validated,
)
from openvse.specs.schema import (
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

__all__ = [
    "DataSpec",
    "OptimizerSpec",
    "Part",
    "PhaseSpec",
    "PlateauSpec",
    "Published",
    "Recipe",
    "RunRecipe",
    "TowerSpec",
    "TrainingSpec",
    "apply_override",
    "describe",
    "expect_task",
    "list_recipes",
    "parse_override",
    "read_recipe",
    "validated",
]
