"""The parts and the training of a model, as data: the schema of recipes, and how recipes are read."""

from openvse.specs.recipe import RunRecipe

__all__ = ["RunRecipe"]
