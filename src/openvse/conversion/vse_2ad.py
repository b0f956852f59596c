"""Checkpoints of VSE+2AD (github.com/96-Zachary/vse_2ad): regions and grids, BiGRU and BERT."""

from __future__ import annotations

from typing import Any

from openvse.conversion.networks import BIGRU, RESIDUAL_MLP, RESNET, bert, bigru, resnet
from openvse.conversion.released import Names, Plan, Released, Weights, refuse_options, renamed, shape, sides
from openvse.errors import CheckpointError

ADPOOL: Names = {
    "pool.linear.": "aggregator.token.0.",
    "pool.balance.weight": "aggregator.balance.weight",
    "pool.balance.bias": None,  # it shifts both of two logits alike
}
LINEAR: Names = {"fc.": "encoder.projection.linear.", "mlp.": None}
BASE_SIZE = 256  # pixels a side, times --input_scale_factor
COUNTING = (
    "captions are pooled without padding: each gets the embedding that the released code gives it alone, or among "
    "captions of its length; text.aggregator.count_padding=true is the released code in a batch, which no index serves"
)


def recognise(released: Released) -> bool:
    """Say whether both sides are pooled adaptively."""
    return any("pool.balance." in name for name in released.image) and "pool.balance.weight" in released.text


def plan(released: Released) -> Plan:
    """Say what to build of a checkpoint.

    Raises:
        CheckpointError: it has no counterpart here.
    """
    options = released.options
    unnormalised = "openvse scores with unit vectors"
    refuse_options(options, {"no_imgnorm": unnormalised, "no_txtnorm": unnormalised})
    if any(name.startswith("vit_model.") for name in released.image):
        raise CheckpointError(
            "its image encoder is a ViT, from which the released code drops a random tenth of the patches at "
            "evaluation: no embedding of it can be repeated, so none is converted"
        )
    image = {n.removeprefix("img_proj."): w for n, w in released.image.items()}
    embed_dim, feature_dim = shape(image, "fc.weight")
    grids = "img_proj.fc.weight" in released.image
    # Both projections are always there; the second is called for regions alone.
    residual = not grids and options.get("precomp_enc_type", "basic") == "basic"
    if grids:
        image_encoder = {
            **resnet(image, "backbone.resnet.", caffe=True),
            "image_size": int(BASE_SIZE * float(options.get("input_scale_factor", 1))),
            "pixels": "caffe",
        }
    else:
        image_encoder = {
            "name": "precomputed",
            "feature_dim": feature_dim,
            "projection": "residual_mlp" if residual else "linear",
        }
    image_names = {**(RESIDUAL_MLP if residual else LINEAR), **RESNET, **ADPOOL}
    text_encoder, text_names, vocabulary = _text_side(released, embed_dim)
    aggregator = {"name": "adpool", "token_weights": "per_dimension"}
    recipe = {
        "name": "converted/vse_2ad",
        "embed_dim": embed_dim,
        "image": {"encoder": image_encoder, "aggregator": aggregator},
        "text": {"encoder": text_encoder, "aggregator": aggregator},
        "objective": {
            "ranking": {
                "name": "contrast",
                "miner": "adaptive_top_k",
                "criterion": {"name": "info_nce", "temperature": 0.01, "margin": 0.2},
                "reduction": "mean",
            }
        },
    }
    weights = sides(renamed(image, image_names), renamed(released.text, {**text_names, **ADPOOL}))
    return Plan(recipe, weights, vocabulary, (COUNTING,))


def _text_side(released: Released, embed_dim: int) -> tuple[dict[str, Any], Names, str]:
    text: Weights = released.text
    if any(name.startswith("bert.") for name in text):
        model = str(released.options.get("bert_type", "bert-base-uncased"))
        encoder, names = bert(text, model=model)
        return encoder, {**names, "fc.": "encoder.projection.linear."}, model
    data = str(released.options.get("data_name", "f30k"))
    return bigru(text, embed_dim=embed_dim), BIGRU, f"data/vocab/{data}_precomp_vocab.json"
