"""Builds a retrieval model from its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.assembly import build_aggregator, build_image_encoder, build_part, build_text_encoder
from openvse.errors import RecipeError
from openvse.model import Start, Tower, TwoTower
from openvse.similarities import SIMILARITIES, Similarity
from openvse.specs import TwoTowerSpec


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
    """Build an untrained model.

    Args:
        spec: the names of the parts; a recipe for retrieval is such a spec.
        captions: the training captions, from which a vocabulary is built; never those of validation or test.
        assets: a model folder whose vocabulary, tokenizer and backbone configuration are read instead.
        seed: the seed of the initial weights.
        start: a model whose files are read for the encoders that agree with its own; ``Start.give`` then copies its
            weights. A vocabulary grows by the words of the captions.

    Raises:
        RecipeError: a part is unknown, an option is wrong, or the parts do not fit together.
    """
    own = TwoTowerSpec.of(spec.model_dump(mode="json"))
    torch.manual_seed(seed)
    files = assets if start is None else start.assets_for("image", own.image)
    image = build_image_encoder(spec.image, spec.embed_dim, files)
    files = assets if start is None else start.assets_for("text", own.text)
    text = build_text_encoder(spec.text, spec.embed_dim, captions, files, grow=assets is None)
    similarity = build_part(SIMILARITIES, spec.similarity, "similarity", {"embed_dim": spec.embed_dim})
    towers = (
        Tower(image, build_aggregator(spec.image, spec.embed_dim, "image", image)),
        Tower(text, build_aggregator(spec.text, spec.embed_dim, "text", text)),
    )
    _check_lengths(spec, similarity, towers)
    return TwoTower(*towers, similarity, own if assets else own.portable())


def _check_lengths(spec: TwoTowerSpec, similarity: Similarity, towers: Sequence[Tower[Any]]) -> None:
    """Raise RecipeError if a similarity of unit vectors would get vectors of other lengths."""
    if similarity.reads_unit_vectors and not all(tower.aggregator.unit_length for tower in towers):
        raise RecipeError(
            f"similarity {spec.similarity.name} compares embeddings of unit length, and an aggregator tokens keeps "
            f"their length, as do frame_levels and graph_levels: set unit_length: true of tokens, or similarity: "
            f"fused; the other two need similarity: hierarchical"
        )
