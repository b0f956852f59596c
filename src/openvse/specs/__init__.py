"""The parts and the training of a model, as data: the schema of recipes, and how recipes are read."""

from __future__ import annotations

from openvse.specs.load import (
    FROM_START,
    about,
    apply_override,
    describe,
    inherited,
    is_complete,
    list_recipes,
    parse_override,
    read_recipe,
    validated,
)
from openvse.specs.model import ModelSpec, Part, Strict, TowerSpec, TwoTowerSpec, without_folders
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
    "FROM_START",
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
    "about",
    "apply_override",
    "describe",
    "inherited",
    "is_complete",
    "list_recipes",
    "parse_override",
    "read_recipe",
    "validated",
    "without_folders",
]
