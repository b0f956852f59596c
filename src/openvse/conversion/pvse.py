"""Checkpoints of PVSE (github.com/yalesong/pvse): images or clips and sentences, one embedding or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openvse.conversion.checkpoint import Plan, ReleasedCheckpoint
from openvse.conversion.networks import BIGRU, bigru, resnet
from openvse.conversion.options import flag, label, number, refuse_options, whole_number
from openvse.conversion.weights import Names, renamed, shape, sides
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
    "the file does not say which states of its GRUs were used: --legacy is assumed, as in the commands of the "
    "repository (otherwise set text.encoder.global_state=final, and for videos image.encoder.pooled_by=bigru)"
)
NUM_FRAMES, MAX_FRAMES = 8, 1000
FRAMES = (
    f"the file does not say how many frames it was trained with: {NUM_FRAMES} are assumed, as for TGIF; set "
    f"image.encoder.num_frames=4 for MRW, as in the command of the repository"
)


def recognise(checkpoint: ReleasedCheckpoint) -> bool:
    """Return whether the checkpoint has a PIE-Net on either side, or its CNN and a GRU."""
    named = (*checkpoint.image, *checkpoint.text)
    return any(name.startswith(("pie_net.", "our_model.")) for name in named) or (
        "cnn.conv1.weight" in checkpoint.image and "embed.weight" in checkpoint.text
    )


def plan(checkpoint: ReleasedCheckpoint) -> Plan:
    """Return the plan for a checkpoint.

    Raises:
        CheckpointError: openvse cannot represent the model.
    """
    options, image, text = checkpoint.options, checkpoint.image, checkpoint.text
    refuse_options(options, {"order": "openvse has no PIE-Nets whose embeddings are absolute values"})
    heads = [n for side in (image, text) for n in side if n.endswith("attention.w_2.weight")]
    if len(heads) < 2:
        raise CheckpointError(
            "it does not have a PIE-Net on both sides (--img_attention, --txt_attention): openvse has no aggregator "
            "that only uses the global vector"
        )
    head = next(n for n in heads if n in image)
    embed_dim = shape(image, head.replace("attention.w_2", "fc"), axes=2)[0]
    legacy = flag(options, "legacy", default=not options)
    video = "rnn.weight_ih_l0" in image
    num_embeddings = shape(image, head, axes=2)[0]
    aggregator = {"name": "pie_net", "num_embeddings": num_embeddings}
    recipe = {
        "name": "converted/pvse",
        "embed_dim": embed_dim,
        "image": {
            "encoder": _clips(checkpoint, legacy=legacy) if video else _images(checkpoint),
            "aggregator": aggregator,
        },
        "text": {
            "encoder": {
                **bigru(text, embed_dim=embed_dim),
                "size_augmentation": "none",
                "output": "words",
                "global_state": "last_word" if legacy else "final",
                "freeze_words": not flag(options, "txt_finetune", default=True),
            },
            "aggregator": aggregator,
        },
        "objective": _objective(options, num_embeddings),
        "optimizer": {
            "name": "adam",
            "amsgrad": True,
            "weight_decay": number(options, "weight_decay", 0.0, lowest=0.0, highest=1.0),
            "learning_rate": number(options, "lr", 2e-4, lowest=1e-8, highest=1.0),
        },
    }
    image_names = {**(VIDEO_CNN if video else CNN), **PIE_NET}
    weights = sides(renamed(image, image_names), renamed(text, {**BIGRU, **PIE_NET}))
    notes = () if options else (LEGACY, FRAMES) if video else (LEGACY,)
    place = (
        f"vocab/{label(options, 'data_name', 'coco')}_vocab.pkl"
        if "data_name" in options
        else "vocab/{coco,mrw,tgif}_vocab.pkl"
    )
    return Plan(recipe, weights, place, notes)


def _images(checkpoint: ReleasedCheckpoint) -> dict[str, Any]:
    return {**_cnn(checkpoint), "projection": "none", "size_augmentation": "none", "pooled": True}


def _clips(checkpoint: ReleasedCheckpoint, *, legacy: bool) -> dict[str, Any]:
    return {
        "name": "frames",
        "backbone": _cnn(checkpoint),
        "num_frames": whole_number(
            checkpoint.options, "max_video_length", NUM_FRAMES, lowest=1, highest=MAX_FRAMES
        ),
        "projection": "none",
        "pooled": True,
        "pooled_by": "bigru_last" if legacy else "bigru",
    }


def _cnn(checkpoint: ReleasedCheckpoint) -> dict[str, Any]:
    options = checkpoint.options
    return {
        **resnet(checkpoint.image, "cnn.", caffe=False),
        "image_size": whole_number(options, "crop_size", 224, lowest=32, highest=4096),
        "fit": "crop",
        "fine_tune": flag(options, "img_finetune", default=True),
    }


def _objective(options: Mapping[str, Any], num_embeddings: int) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "ranking": {
            "name": "contrast",
            "miner": "hardest" if flag(options, "max_violation", default=True) else "all",
            "criterion": {
                "name": "hinge",
                "margin": number(options, "margin", 0.1, lowest=0.0, highest=2.0),
                "reduction": "mean",
            },
            "reduction": "mean",
        }
    }
    weights = {
        name: number(options, f"{option}_weight", 0.0, lowest=0.0, highest=1000.0)
        for name, option in (("diversity", "div"), ("mmd", "mmd"))
    }
    if num_embeddings > 1:  # the released code computes neither term for single embeddings
        terms |= {name: {"name": name, "weight": weight} for name, weight in weights.items() if weight}
    if "mmd" in terms:
        terms["mmd"]["kernel"] = "legacy_exp"
    return terms
