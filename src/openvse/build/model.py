"""A model of retrieval from its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.build.parts import build_part
from openvse.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from openvse.encoders.base import Encoder, ImageEncoder, TextEncoder
from openvse.errors import RecipeError
from openvse.model import Tower, TwoTower
from openvse.recipe import Recipe, RunRecipe, TowerSpec, expect_task
from openvse.similarities import SIMILARITIES, Similarity


# Encoders find by a gradient what of a backbone can train; a caller in inference mode wants a whole model too.
@torch.inference_mode(False)
@torch.enable_grad()
def build_model(recipe: RunRecipe, *, captions: Sequence[str] = (), assets: Path | None = None) -> TwoTower:
    """Build an untrained model.

    Args:
        recipe: names the parts; one for retrieval.
        captions: the training captions, from which a vocabulary is built; never those of validation or test.
        assets: a model folder whose vocabulary, tokenizer and backbone configuration are read instead.

    Raises:
        RecipeError: a part is unknown, an option is wrong, or the parts do not fit together.
    """
    recipe = expect_task(recipe, Recipe)
    torch.manual_seed(recipe.seed)
    image = build_image_encoder(recipe, recipe.image, assets)
    text = build_text_encoder(recipe, captions, assets)
    similarity = build_part(SIMILARITIES, recipe.similarity, "similarity", {"embed_dim": recipe.embed_dim})
    towers = (
        Tower(image, build_aggregator(recipe, recipe.image, "image", image)),
        Tower(text, build_aggregator(recipe, recipe.text, "text", text)),
    )
    _check_lengths(recipe, similarity, towers)
    return TwoTower(*towers, similarity, recipe.to_dict())


def build_image_encoder(recipe: RunRecipe, spec: TowerSpec, assets: Path | None) -> ImageEncoder:
    """Build the image encoder of a side, with the files of a saved model where there are assets."""
    context = {"embed_dim": recipe.embed_dim, "assets": assets and assets / "image"}
    return build_part(IMAGE_ENCODERS, spec.encoder, "image.encoder", context)


def build_text_encoder(recipe: RunRecipe, captions: Sequence[str], assets: Path | None) -> TextEncoder:
    """Build the text encoder, with a vocabulary of the captions or the files of a saved model."""
    context = {"embed_dim": recipe.embed_dim, "assets": assets and assets / "text", "captions": captions}
    return build_part(TEXT_ENCODERS, recipe.text.encoder, "text.encoder", context)


def _check_lengths(recipe: Recipe, similarity: Similarity, towers: Sequence[Tower[Any]]) -> None:
    """Raise RecipeError where a similarity of unit vectors would get vectors of any length."""
    if similarity.reads_unit_vectors and not all(tower.aggregator.unit_length for tower in towers):
        raise RecipeError(
            f"similarity {recipe.similarity.name} compares embeddings of unit length, and an aggregator tokens keeps "
            f"their length: set its unit_length: true, or similarity: fused"
        )


def build_aggregator(recipe: RunRecipe, spec: TowerSpec, side: str, encoder: Encoder) -> Aggregator:
    """Build the aggregator of a side; raise RecipeError beside an encoder that lacks what it needs."""
    context = {"input_dim": encoder.local_dim, "embed_dim": recipe.embed_dim}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its pooled: true (images) or output: words (bigru)"
        )
    return aggregator
