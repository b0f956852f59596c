"""The plans for dual encoders of ``transformers``: the parts of openvse, and the names of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openvse.conversion.weights import Names, Weights, renamed, shape
from openvse.errors import CheckpointError

IMAGE, TEXT = "image.encoder.", "text.encoder."
NOT_WEIGHTS = "position_ids"  # older versions of transformers also save the positions
GELUS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class DualPlan:
    """The parts and weights of openvse for a dual encoder.

    Attributes:
        spec: the spec of the model, as ``TwoTowerSpec`` reads it, without the name of the checkpoint.
        weights: the weights by the names of that model.
        classes: the classes of ``transformers`` for the image tower and the text tower.
    """

    spec: dict[str, Any]
    weights: Weights
    classes: tuple[str, str]


@dataclass(frozen=True)
class Architecture:
    """The conversion of one ``model_type``.

    Attributes:
        what: the name for messages and lists.
        classes: the classes of ``transformers`` for the image tower and the text tower.
        plan: a function that returns the spec and the weights by our names, from the configuration and the weights.
    """

    what: str
    classes: tuple[str, str]
    plan: Callable[[Any, Weights], tuple[dict[str, Any], Weights]]


def plan_dual(config: Any, weights: Weights) -> DualPlan:
    """Return the plan for a checkpoint.

    Args:
        config: the configuration of the whole model, as ``transformers`` reads it.
        weights: the weights by the names of ``transformers``.

    Raises:
        CheckpointError: the architecture or one of its parts cannot be converted.
    """
    architecture = ARCHITECTURES[config.model_type]
    kept = {name: weight for name, weight in weights.items() if not name.endswith(NOT_WEIGHTS)}
    spec, ours = architecture.plan(config, kept)
    return DualPlan(spec, ours, architecture.classes)


def expect_architecture(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless a ``config.json`` describes a dual encoder that can be converted."""
    kind = config.get("model_type")
    if kind == "siglip2":
        raise CheckpointError(
            "it is a NaFlex model of SigLIP 2, which reads an image as a varying number of patches and is not "
            "converted: take one of fixed resolution, such as google/siglip2-base-patch16-224"
        )
    if kind not in ARCHITECTURES:
        named = ", ".join(each.what for each in ARCHITECTURES.values())
        raise CheckpointError(
            f"its config.json says model_type {kind!r}, but only these dual encoders are converted: {named}, and "
            f"OpenCLIP's own files; to use a model that only reads images or texts, name it in a recipe "
            f"(image.encoder.model, text.encoder.model)"
        )


def _clip(config: Any, weights: Weights, *, pooling: str = "last_token") -> tuple[dict[str, Any], Weights]:
    """CLIP and related models: class token -> LayerNorm -> linear; one token of the text -> linear."""
    width = shape(weights, "text_projection.weight", axes=2)[0]
    image = {
        "encoder": {
            "name": "transformers_vision",
            "class_token": True,
            "augmentation": "none",
            "projection": {"name": "norm_linear", "eps": config.vision_config.layer_norm_eps},
        },
        "aggregator": "first_token",
    }
    text = _text(config, pooling, projection={"name": "linear", "bias": False})
    scale = _number(weights, "logit_scale").exp().item()
    spec = _spec(width, image, text, {"scale": scale, "link": "softmax"})
    names: Names = {
        "vision_model.": f"{IMAGE}backbone.",
        "text_model.": f"{TEXT}backbone.",
        "visual_projection.": f"{IMAGE}projection.linear.",
        "text_projection.": f"{TEXT}projection.linear.",
        "logit_": None,
    }
    ours = renamed(weights, names)
    return spec, ours | _again(weights, "vision_model.post_layernorm.", f"{IMAGE}projection.norm.")


def _bert_clip(config: Any, weights: Weights) -> tuple[dict[str, Any], Weights]:
    """AltCLIP and Chinese-CLIP: the image tower of CLIP, and the first token of a BERT."""
    return _clip(config, weights, pooling="first_token")


def _siglip(config: Any, weights: Weights) -> tuple[dict[str, Any], Weights]:
    """SigLIP: patches -> attention pooling; the last position of the text, padding or not -> linear."""
    vision = config.vision_config
    if not vision.vision_use_head:
        raise CheckpointError(
            "its image tower has no pooling head, so it cannot embed an image: take a complete SigLIP model"
        )
    if vision.hidden_act not in GELUS:
        raise CheckpointError(
            f"the pooling head of its image tower has the activation {vision.hidden_act!r}, but map_head only "
            f"has {' or '.join(GELUS)}: take another SigLIP model"
        )
    image = {
        "encoder": {"name": "transformers_vision", "augmentation": "none", "projection": "none"},
        "aggregator": {
            "name": "map_head",
            "num_heads": vision.num_attention_heads,
            "hidden_dim": vision.intermediate_size,
            "activation": GELUS[vision.hidden_act],
            "eps": vision.layer_norm_eps,
        },
    }
    text = _text(config, "last_token", last_position=True)
    scaling = {
        "scale": _number(weights, "logit_scale").exp().item(),
        "bias": _number(weights, "logit_bias").item(),
        "link": "sigmoid",
    }
    spec = _spec(vision.hidden_size, image, text, scaling)
    vision.vision_use_head = False  # the aggregator is the head
    # The defaults are those of CLIP, which are outside of SigLIP's vocabulary; nothing reads them.
    config.text_config.bos_token_id = config.text_config.eos_token_id = None
    names: Names = {
        "vision_model.": f"{IMAGE}backbone.",
        "vision_model.head.": "image.aggregator.",
        "text_model.": f"{TEXT}backbone.",
        "logit_": None,
    }
    ours = renamed(weights, names)
    return spec, ours | _again(weights, "text_model.head.", f"{TEXT}projection.linear.")


def _align(config: Any, weights: Weights) -> tuple[dict[str, Any], Weights]:
    """ALIGN: the mean of an EfficientNet's last feature map; the first token of a BERT -> linear."""
    pooling = config.vision_config.pooling_type
    image = {
        "encoder": {"name": "transformers_vision", "augmentation": "none", "projection": "none"},
        "aggregator": pooling,
    }
    width = shape(weights, "text_projection.weight", axes=2)[0]
    scale = 1 / _number(weights, "temperature").item()
    spec = _spec(width, image, _text(config, "first_token"), {"scale": scale, "link": "softmax"})
    names: Names = {
        "vision_model.": f"{IMAGE}backbone.",
        "text_model.": f"{TEXT}backbone.",
        "text_projection.": f"{TEXT}projection.linear.",
        "temperature": None,
    }
    return spec, renamed(weights, names)


def _text(
    config: Any,
    aggregator: str,
    *,
    projection: Any = "linear",
    last_position: bool = False,
) -> dict[str, Any]:
    """Return the text tower, which reads as many tokens as the text model has positions."""
    own = config.text_config
    # XLM-RoBERTa counts its positions from the one after the padding.
    offset = own.pad_token_id + 1 if own.model_type == "altclip_text_model" else 0
    encoder = {
        "name": "transformers_text",
        "fine_tune": False,
        "max_length": own.max_position_embeddings - offset,
        "size_augmentation": "none",
        "projection": projection,
    }
    return {"encoder": encoder | ({"last_position": True} if last_position else {}), "aggregator": aggregator}


def _spec(width: int, image: dict[str, Any], text: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    if not all(math.isfinite(value) for value in scaling.values() if isinstance(value, float)):
        raise CheckpointError(
            f"the scale of its logits is not finite ({scaling}): its training diverged, or the file is damaged"
        )
    return {
        "embed_dim": width,
        "image": image,
        "text": text,
        "similarity": {"name": "scaled_cosine", **scaling},
    }


def _again(weights: Weights, begin: str, ours: str) -> Weights:
    """Return weights under a second name, for layers that openvse applies after the tower."""
    return {ours + name.removeprefix(begin): w for name, w in weights.items() if name.startswith(begin)}


def _number(weights: Weights, name: str) -> Any:
    if name not in weights or weights[name].numel() != 1:
        raise CheckpointError(
            f"it has no single number {name!r}: the file is incomplete, or of another project"
        )
    return weights[name].detach().double().reshape(())


ARCHITECTURES: Mapping[str, Architecture] = {
    "clip": Architecture("CLIP", ("CLIPVisionModel", "CLIPTextModel"), _clip),
    "siglip": Architecture(
        "SigLIP and SigLIP 2 of fixed resolution", ("SiglipVisionModel", "SiglipTextModel"), _siglip
    ),
    "altclip": Architecture("AltCLIP", ("AltCLIPVisionModel", "AltCLIPTextModel"), _bert_clip),
    "chinese_clip": Architecture(
        "Chinese-CLIP", ("ChineseCLIPVisionModel", "ChineseCLIPTextModel"), _bert_clip
    ),
    "align": Architecture("ALIGN", ("AlignVisionModel", "AlignTextModel"), _align),
    "metaclip_2": Architecture("MetaCLIP 2", ("MetaClip2VisionModel", "MetaClip2TextModel"), _clip),
}
"""The dual encoders of ``transformers`` that are converted, by ``model_type``."""
