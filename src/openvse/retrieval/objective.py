"""Builds an objective from a recipe, for one of its phases."""

from __future__ import annotations

from typing import Any

from openvse.assembly.parts import build_part
from openvse.errors import RecipeError
from openvse.model import TwoTower
from openvse.objectives import TERMS, Objective, Term
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs import Part, PhaseSpec, apply_override, validated


def build_objective(
    recipe: RetrievalRecipe, phase: PhaseSpec | None = None, *, model: TwoTower | None = None
) -> Objective:
    """Build the objective of a recipe with the overrides of a phase.

    Args:
        recipe: the recipe with the terms.
        phase: the phase with the overrides.
        model: the model of the same recipe; if given, a term that cannot act on its embeddings is refused.

    Raises:
        RecipeError: a term, part or option is unknown, a weight is not a number, or a term does not suit the parts of
            the model.
    """
    tree = recipe.to_dict()
    for path, value in (phase.objective if phase else {}).items():
        tree = apply_override(tree, f"objective.{path}", value)
    terms: dict[str, Term] = {}
    weights: dict[str, float] = {}
    relative_to: dict[str, str] = {}
    for name, part in validated(RetrievalRecipe, tree).objective.items():
        where = f"objective.{name}"
        options = part.options
        weights[name] = _weight(options, where)
        if (other := options.pop("relative_to", None)) is not None:
            relative_to[name] = str(other)
        terms[name] = build_part(TERMS, Part(name=part.name, **options), where)
        if model is not None:
            _check_fit(terms[name], f"{where}: {part.name}", recipe, model)
    return Objective(terms, weights, relative_to)


def _check_fit(term: Term, who: str, recipe: RetrievalRecipe, model: TwoTower) -> None:
    """Raise RecipeError for a term that needs embeddings which the parts of the model do not yield."""
    image, text = model.image.aggregator, model.text.aggregator
    if term.needs_residual and not (image.yields_residual or text.yields_residual):
        raise RecipeError(
            f"{who} acts on residuals, and neither image.aggregator {recipe.image.aggregator.name} nor "
            f"text.aggregator {recipe.text.aggregator.name} yields any: use pie_net on at least one side, or "
            f"remove the term"
        )
    if term.needs_source and not (image.yields_source and text.yields_source):
        raise RecipeError(
            f"{who} reconstructs what the codes were made of: set image.aggregator and text.aggregator to autoencoder"
        )
    if term.scores_views and not image.fixed_k:
        raise RecipeError(
            f"{who} needs the same number of embeddings for every image, and image.aggregator "
            f"{recipe.image.aggregator.name} yields as many as an image has elements: choose one with a fixed "
            f"number, such as multi_view"
        )
    if term.scores_views and not model.similarity.is_cosine:
        raise RecipeError(
            f"{who} scores views by their cosine, and similarity {recipe.similarity.name} is another: set "
            f"similarity: set_max, or use contrast in place of the term"
        )


def _weight(options: dict[str, Any], where: str) -> float:
    """Separate the weight of a term, which every term has, from its options."""
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise RecipeError(f"recipe: {where}.weight should be a number, got {weight!r}")
    return float(weight)
