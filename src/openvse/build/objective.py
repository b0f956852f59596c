"""An objective from a recipe, for one of its phases."""

from __future__ import annotations

from typing import Any

from openvse.build.parts import build_part
from openvse.errors import RecipeError
from openvse.objectives import TERMS, Objective, Term
from openvse.recipe import Part, PhaseSpec, Recipe, apply_override, parse_recipe


def build_objective(recipe: Recipe, phase: PhaseSpec | None = None) -> Objective:
    """Build the recipe's objective with a phase's overrides applied.

    Raises:
        RecipeError: an unknown term, part or option, or a weight that is no number.
    """
    tree = recipe.to_dict()
    for path, value in (phase.objective if phase else {}).items():
        tree = apply_override(tree, f"objective.{path}", value)
    terms: dict[str, Term] = {}
    weights: dict[str, float] = {}
    for name, part in parse_recipe(tree).objective.items():
        where = f"objective.{name}"
        options = part.options
        weights[name] = _weight(options, where)
        terms[name] = build_part(TERMS, Part(name=part.name, **options), where)
    return Objective(terms, weights)


def _weight(options: dict[str, Any], where: str) -> float:
    """Take the term's factor out of its options; every term has one."""
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise RecipeError(f"recipe: {where}.weight should be a number, got {weight!r}")
    return float(weight)
