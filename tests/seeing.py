"""Backbones and image encoders for tests: made as a recipe makes them, and looked through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from openvse.assembly.parts import build_image_encoder
from openvse.backbones import Backbone
from openvse.encoders import ImageEncoder
from openvse.specs.model import Part
from openvse.types import Inputs


def see(backbone: Backbone, pixels: torch.Tensor) -> torch.Tensor:
    """Return the local features of a batch of pixels."""
    return backbone(Inputs(pixels, None)).local


def image_encoder(name: str, *, embed_dim: int = 8, assets: Path | None = None, **options: Any) -> ImageEncoder:
    """Build an image encoder of a recipe's options."""
    return build_image_encoder(Part(name=name, **options), embed_dim, assets)


def precomputed(feature_dim: int, embed_dim: int, **options: Any) -> ImageEncoder:
    """Build an encoder of stored features; unless told otherwise, it neither projects nor hides any."""
    plain = {"projection": "none", "augmentation": "none"}
    return image_encoder("precomputed", embed_dim=embed_dim, feature_dim=feature_dim, **(plain | options))
