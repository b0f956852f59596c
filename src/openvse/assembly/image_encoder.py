"""The image encoder of a recipe: one mapping with the options of its backbone and of the encoder around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openvse.assembly.parts import PartMaker, build_part, construct, parameters
from openvse.backbones import BACKBONES, Backbone
from openvse.encoders import AUGMENTATIONS, GLOBAL_VECTORS, ImageEncoder
from openvse.errors import RecipeError, choices, nearest
from openvse.specs import Part, describe

DECIDED = {"backbone", "embed_dim"}  # arguments of the encoder that are not in a recipe


class _EarlierKeys(BaseModel):
    """The keys that the first recipes use instead of ``augmentation`` and ``global_vector``."""

    model_config = ConfigDict(extra="forbid")
    size_augmentation: str | None = None
    augmentation_rate: float | None = Field(None, ge=0, lt=1)
    pooled: bool = False
    pooled_by: str = "mean"


REPLACED = {
    "size_augmentation": "augmentation",
    "augmentation_rate": "augmentation",
    "pooled": "global_vector",
    "pooled_by": "global_vector",
}


def make_image_encoder(part: Part, where: str, embed_dim: int, assets: Path | None) -> ImageEncoder:
    """Build a backbone and the encoder around it.

    Args:
        part: the name of the backbone, and the options of backbone and encoder.
        where: the part's path in the recipe, for messages.
        embed_dim: D.
        assets: the folder that ``ImageEncoder.save_assets`` wrote, whose files are read instead of pretrained ones.

    Raises:
        RecipeError: neither of them has a key, or see ``build_part``.
    """
    of_backbone, of_encoder, earlier = _sorted_options(part, where)
    checked = _checked(earlier, where)
    backbone = build_part(BACKBONES, Part(name=part.name, **of_backbone), where, {"assets": assets})
    context = {"backbone": backbone, "embed_dim": embed_dim, **_translated(checked, backbone, where)}
    return construct(ImageEncoder, of_encoder, where, context)


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
                f"recipe: unknown key {where}.{key}{near}{choices(allowed, f'openvse parts {part.name}')}"
            )
    sides = (backbone, encoder - backbone, REPLACED.keys() - backbone)
    of_backbone, of_encoder, earlier = (
        {key: value for key, value in part.options.items() if key in side} for side in sides
    )
    for key in earlier:
        if REPLACED[key] in of_encoder:
            raise RecipeError(f"recipe: {where}.{key} was replaced by {REPLACED[key]}: give one of the two")
    return of_backbone, of_encoder, earlier


def _checked(earlier: Mapping[str, Any], where: str) -> _EarlierKeys:
    try:
        return _EarlierKeys.model_validate(earlier)
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, _EarlierKeys, prefix=where)}") from error


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
