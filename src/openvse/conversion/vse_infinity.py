"""Checkpoints of VSE-infinity (github.com/woodfrog/vse_infty): BERT and BiGRU branches, regions and grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.checkpoint import Plan, ReleasedCheckpoint
from openvse.conversion.networks import BIGRU, RESIDUAL_MLP, RESNET, bert, bigru, resnet, scaled_size
from openvse.conversion.options import label, number, refuse_options
from openvse.conversion.weights import Names, Weights, renamed, shape, sides

GPO: Names = {"gpool.gru.": "aggregator.generator.", "gpool.linear.": "aggregator.score."}
# Backbones of other projects; the repository's own backbones have the form of the detector.
FROM_THE_HUB = ("wsl", "imagenet_resnext")


def recognise(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether both sides are pooled by GPO."""
    return any("gpool." in name for name in checkpoint.image) and "gpool.linear.weight" in checkpoint.text


def plan(checkpoint: ReleasedCheckpoint) -> Plan:
    """Return the plan for a checkpoint.

    Raises:
        CheckpointError: openvse cannot represent the model.
    """
    options = checkpoint.options
    unnormalised = "openvse scores with unit vectors"
    refuse_options(options, {"no_imgnorm": unnormalised, "no_txtnorm": unnormalised})
    grid = {n.removeprefix("image_encoder."): w for n, w in checkpoint.image.items()}
    embed_dim, feature_dim = shape(grid, "fc.weight", axes=2)
    notes: list[str] = []
    image_encoder = (
        _grids(grid, checkpoint.options, notes)
        if "image_encoder.fc.weight" in checkpoint.image
        else _regions(grid, feature_dim)
    )
    text_encoder, text_names = _text_encoder(checkpoint.text, embed_dim)
    uses_bert = text_encoder["name"] == "transformers_text"
    recipe = {
        "name": "converted/vse_infinity",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": "gpo"},
        "text": {"encoder": text_encoder, "aggregator": "gpo"},
        "objective": {
            "ranking": {
                "name": "contrast",
                # Independent of --max_violation, which the training script turns on after --vse_mean_warmup_epochs.
                "miner": "hardest",
                "criterion": {
                    "name": "hinge",
                    "margin": number(options, "margin", 0.2, lowest=0.0, highest=2.0),
                },
            }
        },
        "optimizer": {"multipliers": {"text.encoder.backbone": 0.1} if uses_bert else {}},
    }
    weights = sides(
        renamed(grid, {**RESIDUAL_MLP, **RESNET, **GPO}), renamed(checkpoint.text, {**text_names, **GPO})
    )
    place = "vocab/f30k_precomp_vocab.json or vocab/coco_precomp_vocab.json, from the data of SCAN"
    return Plan(recipe, weights, "bert-base-uncased" if uses_bert else place, tuple(notes))


def _regions(image: Weights, feature_dim: int) -> dict[str, Any]:
    projection = "residual_mlp" if "mlp.layers.0.weight" in image else "linear"
    return {"name": "precomputed", "feature_dim": feature_dim, "projection": projection}


def _grids(image: Weights, options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    source = label(options, "backbone_source", "detector")
    if "backbone_source" not in options:
        notes.append(
            "the file does not say which CNN it holds: that of the detector is assumed (image.encoder.form)"
        )
    return {
        **resnet(image, "backbone.resnet.", caffe=not any(name in source for name in FROM_THE_HUB)),
        "image_size": scaled_size(options),
        "pixels": "caffe" if "detector" in source else "imagenet",
    }


def _text_encoder(text: Weights, embed_dim: int) -> tuple[dict[str, Any], Names]:
    if any(name.startswith("bert.") for name in text):
        encoder, names = bert(text, model="bert-base-uncased")
        return encoder, {**names, "linear.": "encoder.projection.linear."}
    return bigru(text, embed_dim=embed_dim), BIGRU
