"""The encoder of images and clips (a backbone or stored features, augmentation, a projection), and its regions."""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.backbones import Backbone
from openvse.backbones.base import cell_boxes
from openvse.encoders.augmentations import AUGMENTATIONS, Augmentation
from openvse.encoders.projections import PROJECTIONS, Encoder, GlobalVector, Projection
from openvse.errors import ModelError
from openvse.functional import compact
from openvse.kernels import shapes_are_fixed
from openvse.registry import Maker
from openvse.types import Features, Inputs, moved, on_cpu


class ImageEncoder(Encoder):
    """Projects local features to the joint width. Pixels go through the backbone first.

    ``encoder.backbone`` reads and collates images, and makes the features that a store holds.

    Args:
        backbone: the network that turns pixels into raw local features.
        projection: a factory for a part of ``PROJECTIONS``. None takes the backbone's usual one.
        augmentation: a factory for a part of ``AUGMENTATIONS``, which hides features in training. None takes the
            backbone's usual one.
        global_vector: a factory of ``GLOBAL_VECTORS``, which yields a global vector (PVSE, section 3.1), or None.
    """

    backbone: Backbone

    def __init__(
        self,
        *,
        backbone: Backbone,
        embed_dim: int,
        projection: Maker[Projection] | None = None,
        augmentation: Maker[Augmentation] | None = None,
        global_vector: Maker[GlobalVector] | None = None,
    ) -> None:
        super().__init__()
        # The parts must be made in this order, so that a seed gives the same weights as before.
        self.backbone = backbone
        self.augmentation = (augmentation or AUGMENTATIONS.get(backbone.usual_augmentation))()
        make_projection = projection or PROJECTIONS.get(backbone.usual_projection)
        self.last_dim = backbone.feature_dim - backbone.middle
        self.projection = make_projection(input_dim=self.last_dim, embed_dim=embed_dim)
        self.local_dim = self.projection.output_dim
        self.gives_pooled = global_vector is not None
        self.global_projection: nn.Module | None = None
        if global_vector is not None:
            self.global_projection = global_vector(input_dim=self.last_dim, embed_dim=embed_dim)

    @property
    def feature_dim(self) -> int:
        """C, the width of the raw local features, as a feature store holds them."""
        return self.backbone.feature_dim

    @property
    def fingerprint(self) -> str | None:
        """The identity of the backbone that made the raw features. None accepts any store of the right width."""
        return self.backbone.fingerprint

    @property
    def fine_tune(self) -> bool:
        """Whether the backbone trains, so that stored features would be out of date."""
        return self.backbone.fine_tune

    def local_features(self, inputs: Inputs) -> Features:
        """Return the raw local features of pixels, or check and return the stored ones.

        Args:
            inputs: the output of ``backbone.collate``, or stored features ``[B, N, C]`` with their mask.

        Raises:
            ModelError: an image has no stored features, they have another width or reach a backbone that should
                train, or pixels reach a backbone without a network.
        """
        if inputs.mask is None or inputs.values.dim() != 3:
            return cast(Features, self.backbone(inputs))
        if inputs.values.shape[-1] != self.feature_dim:
            raise ModelError(
                f"the stored features are {inputs.values.shape[-1]} wide, but this encoder expects "
                f"{self.feature_dim}: extract them again with this encoder, or set its feature_dim"
            )
        if not shapes_are_fixed() and not on_cpu(inputs.mask).any(dim=1).all():
            raise ModelError("an image has no local features: leave it out, or give a mask with at least one")
        if self.training and self.fine_tune:
            raise ModelError("fine_tune needs images, not stored features: set fine_tune=false or drop the store")
        local = inputs.values.to(next(self.parameters(), torch.empty(0)).dtype)
        return Features(local, inputs.mask, boxes=inputs.boxes)

    def forward(self, inputs: Inputs) -> Features:
        """Encode pixels or stored features. See ``local_features`` for the inputs."""
        seen = self.local_features(inputs)
        raw, real = seen.local, seen.mask
        if self.backbone.frame_limit is not None:
            raw, real = self.backbone.frame_limit(raw, real, random=self.training)
        mask = self.augmentation(real, self.places(seen) if self.training else None)
        if self.backbone.class_token:
            mask = moved(torch.cat([on_cpu(real)[:, :1], on_cpu(mask)[:, 1:]], dim=1), mask.device)
        if self.training and self.augmentation.removes:
            raw, mask = compact(raw, mask)
        middle, pooled = raw[..., self.last_dim :] if self.backbone.middle else None, None
        raw = raw[..., : self.last_dim]
        if self.global_projection is not None:
            alone = self.backbone.class_token
            pooled = self.global_projection(*((raw[:, :1], mask[:, :1]) if alone else (raw, mask)))
        return Features(self.projection(raw, mask), mask, pooled, middle=middle)

    def places(self, seen: Features) -> Float[Tensor, "B N 4"] | None:
        """Return the places of raw features: their boxes, or the cells of a grid that covers the image."""
        if seen.boxes is not None or not self.backbone.covers_image:
            return seen.boxes
        cells = grid_cells(seen.local.shape[1])
        return None if cells is None else cells.expand(len(seen.local), -1, -1)

    def save_assets(self, folder: Path) -> None:
        self.backbone.save_assets(folder)


class Located(NamedTuple):
    """The raw local features of one image, which an encoder takes in place of pixels, with their places if known.

    A box is left, top, right and bottom as fractions of the image's width and height. If ``tiled``, the boxes are cells
    that cover the image. Otherwise they are regions, which overlap.
    """

    raw: Inputs
    boxes: Float[Tensor, "N 4"] | None
    tiled: bool


def locate(encoder: ImageEncoder, images: Inputs) -> Located:
    """Return the raw local features of a batch of one image. Features of a clip have no places."""
    if images.mask is not None:  # a clip
        return Located(images, None, False)
    seen = encoder.local_features(images)
    boxes = encoder.places(seen)
    return Located(Inputs(seen.local, seen.mask), None if boxes is None else boxes[0].cpu(), seen.boxes is None)


def grid_cells(count: int) -> Float[Tensor, "N 4"] | None:
    """Return the cells of a square grid, row by row. A token before them represents the whole image."""
    side = isqrt(count)
    before = count - side * side
    if before > 1:
        return None
    return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(before, 4), cell_boxes(side)])
