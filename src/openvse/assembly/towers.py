"""The encoder and the aggregator of one side of a model, of whatever task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly.parts import build_part, construct, parameters, resolve
from openvse.backbones import BACKBONES
from openvse.encoders import TEXT_ENCODERS, Encoder, ImageEncoder, TextEncoder
from openvse.errors import RecipeError, choices, nearest
from openvse.specs import Part, TowerSpec

_DECIDED = {"backbone", "embed_dim"}  # arguments of the encoder that are not in a recipe


def build_image_encoder(part: Part, embed_dim: int, assets: Path | None) -> ImageEncoder:
    """Build a backbone and the encoder around it; the options of the part are those of both."""
    where = "image.encoder"
    of_backbone = parameters(resolve(BACKBONES, part, where)).keys() - {"assets"}
    of_encoder = parameters(ImageEncoder).keys() - _DECIDED - of_backbone
    for key in part.options:
        if key not in (allowed := sorted(of_backbone | of_encoder)):
            listed = choices(allowed, f"openvse list parts {part.name}")
            raise RecipeError(f"recipe: unknown key {where}.{key}{nearest(key, allowed)}{listed}")
    inner, outer = (
        {key: value for key, value in part.options.items() if key in side}
        for side in (of_backbone, of_encoder)
    )
    backbone = build_part(BACKBONES, Part(name=part.name, **inner), where, {"assets": assets})
    return construct(ImageEncoder, outer, where, {"backbone": backbone, "embed_dim": embed_dim})


def build_text_encoder(
    spec: TowerSpec, embed_dim: int, captions: Sequence[str], assets: Path | None, *, grow: bool = False
) -> TextEncoder:
    """Build the text encoder, with a vocabulary from the training captions or the files of a saved model.

    With ``grow``, the words of the captions are added to the vocabulary of the saved model.
    """
    folder = assets and assets / "text"
    context = {"embed_dim": embed_dim, "assets": folder, "captions": captions, "grow": grow}
    return build_part(TEXT_ENCODERS, spec.encoder, "text.encoder", context)


def build_aggregator(spec: TowerSpec, embed_dim: int, side: str, encoder: Encoder) -> Aggregator:
    """Build the aggregator of a side, image or text; raise RecipeError if its encoder lacks what it needs."""
    context = {"input_dim": encoder.local_dim, "embed_dim": embed_dim, "side": side}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its global_vector: mean (images) or output: words (bigru)"
        )
    return aggregator
