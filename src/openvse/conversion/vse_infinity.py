"""Checkpoints of VSE-infinity (github.com/woodfrog/vse_infty): BERT and BiGRU branches, regions and grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.networks import BIGRU, RESIDUAL_MLP, RESNET, bert, bigru, resnet
from openvse.conversion.released import Names, Plan, Released, Weights, refuse_options, renamed, shape, sides

GPO: Names = {"gpool.gru.": "aggregator.generator.", "gpool.linear.": "aggregator.score."}
BASE_SIZE = 256  # pixels a side, times --input_scale_factor
# Backbones that come from elsewhere; the others are the repository's own, in the form of the detector.
FROM_THE_HUB = ("wsl", "imagenet_resnext")


def recognise(released: Released) -> bool:
    """Say whether both sides are pooled by GPO."""
    return any("gpool." in name for name in released.image) and "gpool.linear.weight" in released.text


def plan(released: Released) -> Plan:
    """Say what to build of a checkpoint.

    Raises:
        CheckpointError: it has no counterpart here.
    """
    options = released.options
    unnormalised = "openvse scores with unit vectors"
    refuse_options(options, {"no_imgnorm": unnormalised, "no_txtnorm": unnormalised})
    grid = {n.removeprefix("image_encoder."): w for n, w in released.image.items()}
    embed_dim, feature_dim = shape(grid, "fc.weight")
    notes: list[str] = []
    image_encoder = (
        _grids(grid, released.options, notes)
        if "image_encoder.fc.weight" in released.image
        else _regions(grid, feature_dim)
    )
    text_encoder, text_names = _text_encoder(released.text, embed_dim)
    uses_bert = text_encoder["name"] == "transformers_text"
    recipe = {
        "name": "converted/vse_infinity",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": "gpo"},
        "text": {"encoder": text_encoder, "aggregator": "gpo"},
        "objective": {
            "ranking": {
                "name": "contrast",
                "miner": "hardest",
                "criterion": {"name": "hinge", "margin": float(options.get("margin", 0.2))},
            }
        },
        "optimizer": {"multipliers": {"text.encoder.backbone": 0.1} if uses_bert else {}},
    }
    weights = sides(
        renamed(grid, {**RESIDUAL_MLP, **RESNET, **GPO}), renamed(released.text, {**text_names, **GPO})
    )
    place = "vocab/f30k_precomp_vocab.json or vocab/coco_precomp_vocab.json, which SCAN's data has"
    return Plan(recipe, weights, "bert-base-uncased" if uses_bert else place, tuple(notes))


def _regions(image: Weights, feature_dim: int) -> dict[str, Any]:
    projection = "residual_mlp" if "mlp.layers.0.weight" in image else "linear"
    return {"name": "precomputed", "feature_dim": feature_dim, "projection": projection}


def _grids(image: Weights, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    source = str(options.get("backbone_source", "detector"))
    if "backbone_source" not in options:
        notes.append(
            "the file does not say which CNN it holds: taken for the detector's (image.encoder.form)"
        )
    return {
        **resnet(image, "backbone.resnet.", caffe=not any(name in source for name in FROM_THE_HUB)),
        "image_size": int(BASE_SIZE * float(options.get("input_scale_factor", 1))),
        "pixels": "caffe" if "detector" in source else "imagenet",
    }


def _text_encoder(text: Weights, embed_dim: int) -> tuple[dict[str, Any], Names]:
    if any(name.startswith("bert.") for name in text):
        encoder, names = bert(text, model="bert-base-uncased")
        return encoder, {**names, "linear.": "encoder.projection.linear."}
    return bigru(text, embed_dim=embed_dim), BIGRU
