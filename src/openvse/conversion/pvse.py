"""Checkpoints of PVSE (github.com/yalesong/pvse): pictures and sentences, one embedding or several."""

from __future__ import annotations

from typing import Any

from openvse.conversion.networks import BIGRU, bigru, resnet
from openvse.conversion.released import Names, Plan, Released, refuse_options, renamed, shape, sides
from openvse.errors import CheckpointError

PIE_NET: Names = {
    f"{module}.{theirs}.": f"aggregator.{ours}."
    for module in ("pie_net", "our_model")  # the second in files from before July 2019
    for theirs, ours in {
        "attention.w_1": "hidden",
        "attention.w_2": "heads",
        "fc": "residual",
        "layer_norm": "norm",
    }.items()
}
CNN: Names = {"cnn.": "encoder.backbone.", "fc.": "encoder.global_projection.", "cnn.fc.": None}
LEGACY = (
    "the file does not say how captions were read: taken for --legacy, as in the repository's commands "
    "(otherwise text.encoder.global_state=final)"
)


def recognise(released: Released) -> bool:
    """Say whether there is the PIE-Net of either side, or its CNN beside a GRU."""
    named = (*released.image, *released.text)
    return any(name.startswith(("pie_net.", "our_model.")) for name in named) or (
        "cnn.conv1.weight" in released.image and "embed.weight" in released.text
    )


def plan(released: Released) -> Plan:
    """Say what to build of a checkpoint.

    Raises:
        CheckpointError: it has no counterpart here.
    """
    options, image, text = released.options, released.image, released.text
    refuse_options(
        options, {"order": "its embeddings are absolute values, which openvse has in no recipe of PIE-Nets"}
    )
    if any(name.startswith("rnn.") for name in image):
        raise CheckpointError(
            "its images are videos, whose frames a GRU reads: openvse's image encoders have none; models of COCO "
            "are converted"
        )
    heads = [n for side in (image, text) for n in side if n.endswith("attention.w_2.weight")]
    if len(heads) < 2:
        raise CheckpointError(
            "it has no PIE-Net on both sides (--img_attention, --txt_attention): a global vector alone is no "
            "aggregator here"
        )
    embed_dim = shape(image, "fc.weight")[0]
    num_embeddings = shape(image, next(n for n in heads if n in image))[0]
    global_state = "last_word" if options.get("legacy", not options) else "final"
    aggregator = {"name": "pie_net", "num_embeddings": num_embeddings}
    recipe = {
        "name": "converted/pvse",
        "embed_dim": embed_dim,
        "image": {
            "encoder": {
                **resnet(image, "cnn.", caffe=False),
                "image_size": int(options.get("crop_size", 224)),
                "fit": "crop",
                "projection": "none",
                "size_augmentation": "none",
                "pooled": True,
                "fine_tune": bool(options.get("img_finetune", True)),
            },
            "aggregator": aggregator,
        },
        "text": {
            "encoder": {
                **bigru(text, embed_dim=embed_dim),
                "size_augmentation": "none",
                "output": "words",
                "global_state": global_state,
                "freeze_words": not options.get("txt_finetune", True),
            },
            "aggregator": aggregator,
        },
        "objective": _objective(options),
        "optimizer": {"name": "adam", "amsgrad": True, "weight_decay": 0.0, "learning_rate": 2e-4},
    }
    weights = sides(renamed(image, {**CNN, **PIE_NET}), renamed(text, {**BIGRU, **PIE_NET}))
    data = options.get("data_name", "coco")
    return Plan(recipe, weights, f"vocab/{data}_vocab.pkl", () if options else (LEGACY,))


def _objective(options: Any) -> dict[str, Any]:
    margin = float(options.get("margin", 0.1))
    terms: dict[str, Any] = {
        "ranking": {
            "name": "contrast",
            "miner": "hardest" if options.get("max_violation", True) else "all",
            "criterion": {"name": "hinge", "margin": margin, "reduction": "mean"},
            "reduction": "mean",
        }
    }
    for term, option in (("diversity", "div_weight"), ("mmd", "mmd_weight")):
        if options.get(option):
            terms[term] = {"name": term, "weight": float(options[option])}
    return terms
