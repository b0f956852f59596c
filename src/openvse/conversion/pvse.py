"""Checkpoints of PVSE (github.com/yalesong/pvse): pictures or clips and sentences, one embedding or several."""

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
VIDEO_CNN: Names = {
    "cnn.": "encoder.backbone.backbone.",
    "cnn.fc.": None,
    "rnn.": "encoder.global_projection.gru.",
}
LEGACY = (
    "the file does not say how its GRUs were read: taken for --legacy, as in the repository's commands (otherwise "
    "text.encoder.global_state=final, and for videos image.encoder.pooled_by=bigru)"
)
NUM_FRAMES = 8
FRAMES = (
    f"the file does not say how many frames it saw: taken for {NUM_FRAMES}, as for TGIF; image.encoder.num_frames=4 "
    f"is the repository's command for MRW"
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
    heads = [n for side in (image, text) for n in side if n.endswith("attention.w_2.weight")]
    if len(heads) < 2:
        raise CheckpointError(
            "it has no PIE-Net on both sides (--img_attention, --txt_attention): a global vector alone is no "
            "aggregator here"
        )
    head = next(n for n in heads if n in image)
    embed_dim = shape(image, head.replace("attention.w_2", "fc"))[0]
    legacy = bool(options.get("legacy", not options))
    video = "rnn.weight_ih_l0" in image
    aggregator = {"name": "pie_net", "num_embeddings": shape(image, head)[0]}
    recipe = {
        "name": "converted/pvse",
        "embed_dim": embed_dim,
        "image": {
            "encoder": _clips(released, legacy=legacy) if video else _pictures(released),
            "aggregator": aggregator,
        },
        "text": {
            "encoder": {
                **bigru(text, embed_dim=embed_dim),
                "size_augmentation": "none",
                "output": "words",
                "global_state": "last_word" if legacy else "final",
                "freeze_words": not options.get("txt_finetune", True),
            },
            "aggregator": aggregator,
        },
        "objective": _objective(options),
        "optimizer": {"name": "adam", "amsgrad": True, "weight_decay": 0.0, "learning_rate": 2e-4},
    }
    image_names = {**(VIDEO_CNN if video else CNN), **PIE_NET}
    weights = sides(renamed(image, image_names), renamed(text, {**BIGRU, **PIE_NET}))
    notes = () if options else (LEGACY, FRAMES) if video else (LEGACY,)
    place = (
        f"vocab/{options['data_name']}_vocab.pkl"
        if "data_name" in options
        else "vocab/{coco,mrw,tgif}_vocab.pkl"
    )
    return Plan(recipe, weights, place, notes)


def _pictures(released: Released) -> dict[str, Any]:
    return {**_cnn(released), "projection": "none", "size_augmentation": "none", "pooled": True}


def _clips(released: Released, *, legacy: bool) -> dict[str, Any]:
    return {
        "name": "frames",
        "backbone": _cnn(released),
        "num_frames": int(released.options.get("max_video_length", NUM_FRAMES)),
        "projection": "none",
        "pooled": True,
        "pooled_by": "bigru_last" if legacy else "bigru",
    }


def _cnn(released: Released) -> dict[str, Any]:
    options = released.options
    return {
        **resnet(released.image, "cnn.", caffe=False),
        "image_size": int(options.get("crop_size", 224)),
        "fit": "crop",
        "fine_tune": bool(options.get("img_finetune", True)),
    }


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
