"""The encoder and the aggregator of one side of a model, of whatever task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly.parts import PartMaker, build_part, construct, parameters
from openvse.backbones import BACKBONES, Backbone
from openvse.encoders import AUGMENTATIONS, GLOBAL_VECTORS, TEXT_ENCODERS, Encoder, ImageEncoder, TextEncoder
from openvse.errors import RecipeError, choices, nearest
from openvse.specs import Part, TowerSpec, describe

DECIDED = {"backbone", "embed_dim"}  # arguments of the encoder that are not in a recipe
REPLACED = {  # keys of the first recipes, and the option of today that each stands for
    "size_augmentation": "augmentation",
    "augmentation_rate": "augmentation",
    "pooled": "global_vector",
    "pooled_by": "global_vector",
}


def build_image_encoder(part: Part, embed_dim: int, assets: Path | None) -> ImageEncoder:
    """Build a backbone and the encoder around it.

    Args:
        part: the name of the backbone, and the options of backbone and encoder.
        embed_dim: D.
        assets: the folder that ``ImageEncoder.save_assets`` wrote, whose files are read instead of pretrained ones.

    Raises:
        RecipeError: neither of them has a key, or see ``build_part``.
    """
    where = "image.encoder"
    of_backbone, of_encoder, earlier = _sorted_options(part, where)
    try:
        checked = _EarlierKeys.model_validate(earlier)
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, _EarlierKeys, prefix=where)}") from error
    backbone = build_part(BACKBONES, Part(name=part.name, **of_backbone), where, {"assets": assets})
    context = {"backbone": backbone, "embed_dim": embed_dim, **_translated(checked, backbone, where)}
    return construct(ImageEncoder, of_encoder, where, context)


def build_text_encoder(
    spec: TowerSpec, embed_dim: int, captions: Sequence[str], assets: Path | None, *, grow: bool = False
) -> TextEncoder:
    """Build the text encoder, with a vocabulary from the captions or the files of a saved model.

    Args:
        spec: the side with its encoder.
        embed_dim: D.
        captions: the training captions; if there are assets, only ``grow`` reads them.
        assets: the folder of a saved model.
        grow: add the words of the captions to the vocabulary of the assets.
    """
    folder = assets and assets / "text"
    context = {"embed_dim": embed_dim, "assets": folder, "captions": captions, "grow": grow}
    return build_part(TEXT_ENCODERS, spec.encoder, "text.encoder", context)


def build_aggregator(spec: TowerSpec, embed_dim: int, side: str, encoder: Encoder) -> Aggregator:
    """Build the aggregator of a side; raise RecipeError if the encoder lacks what it needs.

    Args:
        spec: the side with its aggregator.
        embed_dim: D.
        side: image or text.
        encoder: the encoder of the same side.
    """
    context = {"input_dim": encoder.local_dim, "embed_dim": embed_dim, "side": side}
    aggregator = build_part(AGGREGATORS, spec.aggregator, f"{side}.aggregator", context)
    if aggregator.needs_pooled and not encoder.gives_pooled:
        raise RecipeError(
            f"{side}.aggregator: {spec.aggregator.name} needs a global vector, and {side}.encoder "
            f"{spec.encoder.name} yields none: set its global_vector: mean (images) or output: words (bigru)"
        )
    return aggregator


class _EarlierKeys(BaseModel):
    """The keys that the first recipes use instead of ``augmentation`` and ``global_vector``."""

    model_config = ConfigDict(extra="forbid")
    size_augmentation: str | None = None
    augmentation_rate: float | None = Field(None, ge=0, lt=1)
    pooled: bool = False
    pooled_by: str = "mean"


def _sorted_options(part: Part, where: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Separate the options of the backbone, those of the encoder, and those with an earlier name; refuse all others."""
    try:
        factory, implied = BACKBONES.resolve(part.name)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    backbone = parameters(factory).keys() - implied.keys() - {"assets"}
    encoder = parameters(ImageEncoder).keys() - DECIDED
    for key in part.options:
        if key not in backbone | encoder | REPLACED.keys():
            allowed = sorted(backbone | encoder)
            near = nearest(key, [*allowed, *REPLACED])
            raise RecipeError(
                f"recipe: unknown key {where}.{key}{near}{choices(allowed, f'openvse list parts {part.name}')}"
            )
    sides = (backbone, encoder - backbone, REPLACED.keys() - backbone)
    of_backbone, of_encoder, earlier = (
        {key: value for key, value in part.options.items() if key in side} for side in sides
    )
    for key in earlier:
        if REPLACED[key] in of_encoder:
            raise RecipeError(f"recipe: {where}.{key} was replaced by {REPLACED[key]}: give one of the two")
    return of_backbone, of_encoder, earlier


def _translated(earlier: _EarlierKeys, backbone: Backbone, where: str) -> dict[str, PartMaker[Any]]:
    """Return the parts that keys with an earlier name mean, with their paths in the recipe."""
    parts: dict[str, PartMaker[Any]] = {}
    if earlier.size_augmentation is not None or earlier.augmentation_rate is not None:
        name = earlier.size_augmentation or backbone.usual_augmentation
        rate = earlier.augmentation_rate
        options = {} if rate is None or name == "none" else {"rate": rate}
        place = f"{where}.size_augmentation"
        parts["augmentation"] = PartMaker(AUGMENTATIONS, Part(name=name, **options), place)
    if earlier.pooled:
        parts["global_vector"] = PartMaker(GLOBAL_VECTORS, Part(name=earlier.pooled_by), f"{where}.pooled_by")
    return parts
