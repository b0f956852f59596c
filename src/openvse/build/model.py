"""A model from a recipe, or from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.build.parts import build_part
from openvse.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from openvse.encoders.base import Encoder
from openvse.errors import ModelError, RecipeError
from openvse.model import Tower, TwoTower, read_config, read_weights
from openvse.recipe import Recipe, TowerSpec, parse_recipe
from openvse.similarities import SIMILARITIES, Similarity


# Encoders find by a gradient what of a backbone can train; a caller in inference mode wants a whole model too.
@torch.inference_mode(False)
@torch.enable_grad()
def build_model(recipe: Recipe, *, captions: Sequence[str] = (), assets: Path | None = None) -> TwoTower:
    """Build an untrained model.

    Args:
        recipe: names the parts.
        captions: the training captions, from which a vocabulary is built; never those of validation or test.
        assets: a model folder whose vocabulary, tokenizer and backbone configuration are read instead.

    Raises:
        RecipeError: a part is unknown, an option is wrong, or the parts do not fit together.
    """
    torch.manual_seed(recipe.seed)
    image = build_part(
        IMAGE_ENCODERS,
        recipe.image.encoder,
        "image.encoder",
        {"embed_dim": recipe.embed_dim, "assets": assets and assets / "image"},
    )
    text = build_part(
        TEXT_ENCODERS,
        recipe.text.encoder,
        "text.encoder",
        {"embed_dim": recipe.embed_dim, "assets": assets and assets / "text", "captions": captions},
    )
    similarity = build_part(SIMILARITIES, recipe.similarity, "similarity", {"embed_dim": recipe.embed_dim})
    towers = (
        Tower(image, _aggregator(recipe, recipe.image, "image", image)),
        Tower(text, _aggregator(recipe, recipe.text, "text", text)),
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


def _aggregator(recipe: Recipe, spec: TowerSpec, side: str, encoder: Encoder) -> Aggregator:
    context = {"input_dim": encoder.local_dim, "embed_dim": recipe.embed_dim}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its pooled: true (images) or output: words (bigru)"
        )
    return aggregator


def load_model(
    source: str | Path, *, device: str | torch.device = "cpu", revision: str | None = None
) -> TwoTower:
    """Load a model folder, or download one from the Hugging Face hub, ready to encode.

    Args:
        source: a folder, or a hub id such as ``someone/flickr30k-vse-infinity``.
        device: where the weights go.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: no such folder or hub id, or a damaged one.
    """
    folder = Path(source)
    if not folder.exists():
        folder = _download(str(source), revision)
    config: Mapping[str, Any] = read_config(folder)
    model = build_model(parse_recipe(config), assets=folder)
    read_weights(model, folder)
    return model.to(device).eval()


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{repo_id} is neither a folder nor a model that the hub gave ({reason}): check the path or the id"
        ) from error
