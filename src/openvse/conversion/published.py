"""Published dual encoders to start with, by short name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedModel:
    """A dual encoder on the hub: the side of its images in pixels, its millions of parameters, and its width D."""

    source: str
    what: str
    side: int
    millions: int
    width: int
    languages: str
    licence: str


def _clip(source: str, what: str, side: int, millions: int, width: int) -> PublishedModel:
    return PublishedModel(source, what, side, millions, width, "English", "MIT")


_SIGLIP, _SIGLIP2 = "google/siglip-", "google/siglip2-"

PUBLISHED: Mapping[str, PublishedModel] = {
    "clip-b32": _clip("openai/clip-vit-base-patch32", "CLIP ViT-B/32", 224, 151, 512),
    "clip-b16": _clip("openai/clip-vit-base-patch16", "CLIP ViT-B/16", 224, 150, 512),
    "clip-l14": _clip("openai/clip-vit-large-patch14", "CLIP ViT-L/14", 224, 428, 768),
    "laion-b32": _clip("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "OpenCLIP ViT-B/32, LAION-2B", 224, 151, 512),
    "laion-h14": _clip(
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "OpenCLIP ViT-H/14, LAION-2B", 224, 986, 1024
    ),
    "siglip-b16": PublishedModel(
        f"{_SIGLIP}base-patch16-224", "SigLIP B/16", 224, 203, 768, "English", "Apache-2.0"
    ),
    "siglip-so400m": PublishedModel(
        f"{_SIGLIP}so400m-patch14-384", "SigLIP So400m/14", 384, 878, 1152, "English", "Apache-2.0"
    ),
    "siglip2-b16": PublishedModel(
        f"{_SIGLIP2}base-patch16-224", "SigLIP 2 B/16", 224, 375, 768, "many", "Apache-2.0"
    ),
    "altclip": PublishedModel(
        "BAAI/AltCLIP", "AltCLIP ViT-L/14", 224, 864, 768, "English, Chinese", "CreativeML OpenRAIL-M"
    ),
    "chinese-clip-b16": PublishedModel(
        "OFA-Sys/chinese-clip-vit-base-patch16", "Chinese-CLIP ViT-B/16", 224, 188, 512, "Chinese", "MIT"
    ),
    "align": PublishedModel(
        "kakaobrain/align-base", "ALIGN, EfficientNet-B7", 289, 172, 640, "English", "see its page"
    ),
}
"""The models, with the ones to try first at the top."""
