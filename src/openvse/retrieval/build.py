"""A model of retrieval from its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.assembly import build_aggregator, build_image_encoder, build_part, build_text_encoder
from openvse.errors import RecipeError
from openvse.model import Tower, TwoTower
from openvse.similarities import SIMILARITIES, Similarity
from openvse.specs import Recipe, RunRecipe, expect_task


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
    image = build_image_encoder(recipe.image, recipe.embed_dim, assets)
    text = build_text_encoder(recipe.text, recipe.embed_dim, captions, assets)
    similarity = build_part(SIMILARITIES, recipe.similarity, "similarity", {"embed_dim": recipe.embed_dim})
    towers = (
        Tower(image, build_aggregator(recipe.image, recipe.embed_dim, "image", image)),
        Tower(text, build_aggregator(recipe.text, recipe.embed_dim, "text", text)),
    )
    _check_lengths(recipe, similarity, towers)
    return TwoTower(*towers, similarity, recipe.to_dict())


def _check_lengths(recipe: Recipe, similarity: Similarity, towers: Sequence[Tower[Any]]) -> None:
    """Raise RecipeError where a similarity of unit vectors would get vectors of any length."""
    if similarity.reads_unit_vectors and not all(tower.aggregator.unit_length for tower in towers):
        raise RecipeError(
            f"similarity {recipe.similarity.name} compares embeddings of unit length, and an aggregator tokens keeps "
            f"their length: set its unit_length: true, or similarity: fused"
        )
