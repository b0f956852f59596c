"""Builds a model of retrieval from its recipe, and the objective of each of its phases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.assembly.parts import build_aggregator, build_image_encoder, build_part, build_text_encoder
from openvse.errors import RecipeError
from openvse.model.start import Start
from openvse.model.two_tower import Tower, TwoTower
from openvse.objectives import TERMS, Term
from openvse.objectives.base import Objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.similarities import SIMILARITIES, Similarity
from openvse.specs.load import apply_override, validated
from openvse.specs.model import Part, TwoTowerSpec
from openvse.specs.recipe import PhaseSpec


# Encoders use a gradient to find the trainable parameters of a backbone, also if the caller is in inference mode.
@torch.inference_mode(False)
@torch.enable_grad()
def build_model(
    spec: TwoTowerSpec,
    *,
    captions: Sequence[str] = (),
    assets: Path | None = None,
    seed: int = 0,
    start: Start | None = None,
) -> TwoTower:
    """Build an untrained model. A recipe for retrieval is such a spec.

    Args:
        captions: the training captions, from which a vocabulary is built, never validation or test captions.
        assets: a model folder whose vocabulary, tokenizer and backbone configuration are read instead.
        start: a model whose files are read for the encoders that agree with its own. ``Start.give`` then copies its
            weights. A vocabulary grows by the words of the captions.
    """
    own = TwoTowerSpec.of(spec.model_dump(mode="json"))
    torch.manual_seed(seed)
    image_files = assets if start is None else start.assets_for("image", own.image)
    text_files = assets if start is None else start.assets_for("text", own.text)
    image = build_image_encoder(spec.image.encoder, spec.embed_dim, image_files and image_files / "image")
    text = build_text_encoder(spec.text, spec.embed_dim, captions, text_files, grow=assets is None)
    similarity = build_part(SIMILARITIES, spec.similarity, "similarity", {"embed_dim": spec.embed_dim})
    towers = (
        Tower(image, build_aggregator(spec.image, spec.embed_dim, "image", image)),
        Tower(text, build_aggregator(spec.text, spec.embed_dim, "text", text)),
    )
    _check_embeddings(spec, similarity, towers)
    return TwoTower(*towers, similarity, own if assets else own.portable())


def _check_embeddings(spec: TwoTowerSpec, similarity: Similarity, towers: Sequence[Tower[Any]]) -> None:
    """Raise RecipeError if a similarity would get vectors of a width or length, or distributions, that do not fit."""
    image, text = (spec.embed_dim * tower.aggregator.widens for tower in towers)
    if image != text:
        raise RecipeError(
            f"embeddings of images are {image} wide, but those of texts {text}: give both aggregators the same combine "
            f"and joined, and with joined the same num_embeddings"
        )
    if any(tower.aggregator.yields_gaussian is not similarity.reads_gaussians for tower in towers):
        raise RecipeError(
            f"similarity {spec.similarity.name} gets embeddings of {spec.image.aggregator.name} (images) and "
            f"{spec.text.aggregator.name} (texts): gaussian on both sides and similarity: csd need each other"
        )
    if similarity.reads_unit_vectors and not all(tower.aggregator.unit_length for tower in towers):
        raise RecipeError(
            f"similarity {spec.similarity.name} compares embeddings of unit length, but the aggregators tokens, "
            f"frame_levels and graph_levels keep their length: set unit_length: true of tokens, or similarity: "
            f"fused (tokens) or hierarchical (the other two)"
        )


def build_objective(
    recipe: RetrievalRecipe, phase: PhaseSpec | None = None, *, model: TwoTower | None = None
) -> Objective:
    """Build the objective of a recipe with the overrides of a phase. Refuse a term that does not suit the model."""
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
    if term.reads_gaussians and not model.similarity.reads_gaussians:
        raise RecipeError(
            f"{who} compares distributions, but similarity {recipe.similarity.name} does not: set similarity: csd, and "
            f"both aggregators to gaussian"
        )
    if term.needs_residual and not (image.yields_residual or text.yields_residual):
        raise RecipeError(
            f"{who} acts on residuals, but neither image.aggregator {recipe.image.aggregator.name} nor "
            f"text.aggregator {recipe.text.aggregator.name} yields any: use pie_net or slot_attention on at "
            f"least one side, or remove the term"
        )
    if term.needs_source and not (image.yields_source and text.yields_source):
        raise RecipeError(
            f"{who} reconstructs the sources of codes: set image.aggregator and text.aggregator to autoencoder"
        )
    if term.needs_attended and not model.similarity.attends:
        raise RecipeError(
            f"{who} reads what a pair attends to, but similarity {recipe.similarity.name} does not attend: set "
            f"similarity: {{name: fused, fusion: score_attention}}, with tokens on both sides, or remove the term"
        )
    if term.scores_views and not image.fixed_k:
        raise RecipeError(
            f"{who} needs the same number of embeddings for every image, but image.aggregator "
            f"{recipe.image.aggregator.name} yields as many as an image has elements: choose one with a fixed "
            f"number, such as multi_view"
        )
    if term.scores_views and not model.similarity.is_cosine:
        raise RecipeError(
            f"{who} scores views by their cosine, but similarity {recipe.similarity.name} does not: set "
            f"similarity: set_max, or use contrast in place of the term"
        )


def _weight(options: dict[str, Any], where: str) -> float:
    """Separate the weight of a term, which every term has, from its options."""
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise RecipeError(f"recipe: {where}.weight should be a number, got {weight!r}")
    return float(weight)
