"""Checkpoints of VSE+2AD (github.com/96-Zachary/vse_2ad): regions and grids, BiGRU and BERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.checkpoint import Plan, ReleasedCheckpoint
from openvse.conversion.networks import BIGRU, RESIDUAL_MLP, RESNET, bert, bigru, resnet, scaled_size
from openvse.conversion.options import label, number, refuse_options
from openvse.conversion.weights import Names, Weights, renamed, shape, sides
from openvse.errors import CheckpointError

ADPOOL: Names = {
    "pool.linear.": "aggregator.token.0.",
    "pool.balance.weight": "aggregator.balance.weight",
    "pool.balance.bias": None,  # it shifts both logits equally
}
LINEAR: Names = {"fc.": "encoder.projection.linear.", "mlp.": None}
SCALE = 1.25  # the exponent of its rule for the number of negatives, which adaptive_top_k has as a constant
COUNTING = (
    "captions are pooled without padding: the embedding of each equals that of the released code for a batch with only "
    "this caption; text.aggregator.count_padding=true repeats the released code in a batch, but cannot be indexed"
)


def recognise(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether both sides are pooled by AdPool."""
    return (
        any("pool.balance." in name for name in checkpoint.image) and "pool.balance.weight" in checkpoint.text
    )


def plan(checkpoint: ReleasedCheckpoint) -> Plan:
    """Return the plan for a checkpoint.

    Raises:
        CheckpointError: openvse cannot represent the model.
    """
    options = checkpoint.options
    unnormalised = "openvse scores with unit vectors"
    refuse_options(options, {"no_imgnorm": unnormalised, "no_txtnorm": unnormalised})
    if any(name.startswith("vit_model.") for name in checkpoint.image):
        raise CheckpointError(
            "its image encoder is a ViT, from which the released code drops a random tenth of the patches at "
            "evaluation: its embeddings cannot be reproduced, so it is not converted"
        )
    image = {n.removeprefix("img_proj."): w for n, w in checkpoint.image.items()}
    embed_dim, feature_dim = shape(image, "fc.weight", axes=2)
    grids = "img_proj.fc.weight" in checkpoint.image
    # Both projections always exist; the second is only used for regions.
    residual = not grids and label(options, "precomp_enc_type", "basic") == "basic"
    if grids:
        image_encoder = {
            **resnet(image, "backbone.resnet.", caffe=True),
            "image_size": scaled_size(options),
            "pixels": "caffe",
        }
    else:
        image_encoder = {
            "name": "precomputed",
            "feature_dim": feature_dim,
            "projection": "residual_mlp" if residual else "linear",
        }
    image_names = {**(RESIDUAL_MLP if residual else LINEAR), **RESNET, **ADPOOL}
    text_encoder, text_names, vocabulary = _text_side(checkpoint, embed_dim)
    aggregator = {"name": "adpool", "token_weights": "per_dimension"}
    recipe = {
        "name": "converted/vse_2ad",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": aggregator},
        "text": {"encoder": text_encoder, "aggregator": aggregator},
        "objective": {"ranking": _ranking(options)},
    }
    weights = sides(renamed(image, image_names), renamed(checkpoint.text, {**text_names, **ADPOOL}))
    return Plan(recipe, weights, vocabulary, (COUNTING, *_scale_note(options)))


def _ranking(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranking term; the training script always passes --tau to its loss."""
    criterion = {
        "name": "info_nce",
        "temperature": number(options, "tau", 0.05, lowest=0.001, highest=10.0),
        "margin": number(options, "margin", 0.2, lowest=0.0, highest=2.0),
    }
    return {"name": "contrast", "miner": "adaptive_top_k", "criterion": criterion, "reduction": "mean"}


def _scale_note(options: Mapping[str, Any]) -> tuple[str, ...]:
    scale = number(options, "scale", SCALE, lowest=0.0, highest=100.0)
    if scale == SCALE:
        return ()
    return (
        f"it was trained with --scale {scale:g}, but adaptive_top_k counts negatives as with --scale {SCALE}: its "
        f"embeddings are the same, and only further training differs",
    )


def _text_side(checkpoint: ReleasedCheckpoint, embed_dim: int) -> tuple[dict[str, Any], Names, str]:
    text: Weights = checkpoint.text
    if any(name.startswith("bert.") for name in text):
        model = label(checkpoint.options, "bert_type", "bert-base-uncased")
        encoder, names = bert(text, model=model)
        return encoder, {**names, "fc.": "encoder.projection.linear."}, model
    data = label(checkpoint.options, "data_name", "f30k")
    return bigru(text, embed_dim=embed_dim), BIGRU, f"data/vocab/{data}_precomp_vocab.json"
