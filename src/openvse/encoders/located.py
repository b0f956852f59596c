"""Where in an image its local features are."""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.encoders.image_encoder import ImageEncoder
from openvse.types import Inputs


class Located(NamedTuple):
    """The raw local features of one image, with their places.

    Attributes:
        raw: the local features, which an encoder takes in place of pixels.
        boxes: left, top, right and bottom of each as fractions of the image's width and height; None if not known.
        tiled: whether they are cells that cover the image; otherwise they are regions, which overlap.
    """

    raw: Inputs
    boxes: Float[Tensor, "N 4"] | None
    tiled: bool


def locate(encoder: ImageEncoder, images: Inputs) -> Located:
    """Return the raw local features of a batch of one image; those of a clip have no places."""
    if images.mask is not None:  # a clip
        return Located(images, None, False)
    seen = encoder.local_features(images)
    raw = Inputs(seen.local, seen.mask)
    if seen.boxes is not None:
        return Located(raw, seen.boxes[0].cpu(), False)
    return Located(raw, grid_cells(seen.local.shape[1]) if encoder.backbone.covers_image else None, True)


def grid_cells(count: int) -> Float[Tensor, "N 4"] | None:
    """Return the cells of a square grid, row by row; a token before them represents the whole image."""
    side = isqrt(count)
    before = count - side * side
    if before > 1:
        return None
    edges = torch.arange(side + 1) / side
    top, left = torch.meshgrid(edges[:-1], edges[:-1], indexing="ij")
    cells = torch.stack([left, top, left + 1 / side, top + 1 / side], dim=-1).flatten(0, 1)
    return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(before, 4), cells])
