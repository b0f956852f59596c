"""The shipped recipes of every method on a tiny data set: a width of 16, stored features, the last phase, an epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openvse.specs import RunRecipe
from openvse.specs.model import Part
from openvse.tasks.recipes import load_recipe
from tests.tiny import FEATURE_DIM

OF_METHODS = (
    *("corr_full_ae/tgif_frames", "devise/mrw_frames", "dive/coco_grids_bigru"),
    *("esa/coco_regions_bigru", "fs_pool/flickr8k_grids_cpu", "gem_pool/flickr8k_grids_cpu"),
    *("gpo_adopt/flickr8k_crops_minilm_cpu", "hgr/clips_cpu", "hgr_infinity/clips_cpu"),
    *("k_max_pool/flickr8k_grids", "max_pool/flickr8k_grids", "multi_view_adopt/flickr8k_grids_cpu"),
    *("mv_vse/coco_regions_bigru", "order/coco_10crop_gru", "pcmepp/flickr8k_crops_minilm_cpu"),
    *("pvse/coco_grids_bigru", "score_attention/flickr8k_grids_cpu", "vse_0/coco_1crop_gru"),
    *("vse_2ad/coco_regions_bert", "vse_infinity/coco_regions_bigru", "vse_pp/coco_10crop_gru"),
)
"""A recipe of retrieval for every method that trains on stored features."""

_KEPT = ("augmentation", "global_vector", "num_frames", "projection")


def small(name: str, corpus: Path, bert: str, device: str = "cpu") -> RunRecipe:
    """Return a recipe at a size that a test can afford; ``bert`` takes the place of a text model."""
    recipe = load_recipe(name)
    changes: dict[str, Any] = {
        "embed_dim": 16,
        "data.source": str(corpus / "tiny.csv"),
        "data.features": str(corpus / "features"),
        "data.text_features": None,
        "training.batch_size": 8,
        "training.validation_images": None,
        "training.threads": None,
        "training.device": device,
        "training.precision": "fp32",
        "training.log_every": 100,
        "training.phases": [
            {**phase.model_dump(mode="json", exclude_defaults=True), "epochs": 1, "frozen": []}
            for phase in recipe.training.phases[-1:]
        ],
    }
    if recipe.image is not None:
        changes["image.encoder"] = _stored(recipe.image.encoder)
        _narrow("image.aggregator", recipe.image.aggregator, changes)
    encoder = recipe.text.encoder
    if encoder.name == "transformers_text":
        changes["text.encoder.model"] = bert
    else:
        changes |= {"text.encoder.min_count": 1, "text.encoder.word_dim": 16, "text.encoder.tokenizer": "words"}
    if encoder.name in ("bag_of_words", "role_graph"):
        del changes["text.encoder.tokenizer"]
    _narrow("text.aggregator", recipe.text.aggregator, changes)
    for key, term in getattr(recipe, "objective", {}).items():
        if term.name == "correspondence":
            changes |= {f"objective.{key}.{width}": 16 for width in ("embed_dim", "text_dim")}
            changes[f"objective.{key}.image_dim"] = FEATURE_DIM
    return load_recipe(name, [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def _stored(encoder: Part) -> dict[str, Any]:
    kept = {key: encoder.options[key] for key in _KEPT if key in encoder.options}
    return {"name": "precomputed", "feature_dim": FEATURE_DIM, **kept}


def _narrow(where: str, part: Part, changes: dict[str, Any]) -> None:
    changes |= {f"{where}.{key}": 16 for key in part.options if key == "base_dim"}
