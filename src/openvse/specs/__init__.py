"""The parts and the training of a model, as data: the schema of recipes, and how recipes are read."""

from __future__ import annotations

from openvse.specs.load import (
    apply_override,
    describe,
    list_recipes,
    parse_override,
    read_recipe,
    validated,
)
from openvse.specs.model import ModelSpec, Part, Strict, TowerSpec, TwoTowerSpec
from openvse.specs.recipe import (
    AverageSpec,
    DataSpec,
    OptimizerSpec,
    PhaseSpec,
    PlateauSpec,
    RunRecipe,
    TrainingSpec,
)

__all__ = [
    "AverageSpec",
    "DataSpec",
    "ModelSpec",
    "OptimizerSpec",
    "Part",
    "PhaseSpec",
    "PlateauSpec",
    "RunRecipe",
    "Strict",
    "TowerSpec",
    "TrainingSpec",
    "TwoTowerSpec",
    "apply_override",
    "describe",
    "list_recipes",
    "parse_override",
    "read_recipe",
    "validated",
]
