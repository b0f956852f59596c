"""Images whose local features (regions, grids, frames) were made elsewhere and lie in a feature store."""

from __future__ import annotations

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import ModelError

_NO_BACKBONE = (
    "encoder 'precomputed' cannot read pictures: give stored features, or use an encoder with a backbone"
)


class Precomputed(LocalFeatureEncoder):
    """Stored local features, augmented and projected; the defaults are VSE-infinity's for regions.

    Args:
        embed_dim: D.
        feature_dim: C, the width of the stored features (2048 for bottom-up attention).
        projection: a name of ``PROJECTIONS``.
        size_augmentation: none, region or grid.
        augmentation_rate: probability that a local feature is hidden in training.
        pooled: yield a global vector too, one linear layer of the mean raw feature; PIE-Net needs it.
        made_by: take features made by this encoder alone, as their store names it; None takes any of this width.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        feature_dim: int,
        projection: str = "residual_mlp",
        size_augmentation: FeatureMode = "region",
        augmentation_rate: float = 0.2,
        pooled: bool = False,
        made_by: str | None = None,
    ) -> None:
        super().__init__(
            backbone=nn.Identity(),
            feature_dim=feature_dim,
            fingerprint=made_by,
            embed_dim=embed_dim,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=augmentation_rate,
            fine_tune=False,
            pooled=pooled,
        )

    def preprocess(self, image: Image, generator: torch.Generator | None = None) -> Float[Tensor, "3 H W"]:
        """Raise ModelError: there is no backbone."""
        raise ModelError(_NO_BACKBONE)

    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Raise ModelError: there is no backbone."""
        raise ModelError(_NO_BACKBONE)
