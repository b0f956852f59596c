"""Images whose local features (regions, grids, frames) were made elsewhere and lie in a feature store."""

from __future__ import annotations

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.encoders.frame_limit import FrameLimit
from openvse.encoders.global_vector import PooledBy
from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import ModelError, RecipeError

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
        pooled: yield a global vector too; PIE-Net needs it.
        pooled_by: how: ``mean``, one linear layer of the mean raw feature; ``bigru``, its last states over the
            features in their order (PVSE's for videos); ``bigru_last``, both directions at the last one (PVSE's
            published models).
        num_frames: the features are frames in order of time, and the model sees at most this many of a clip: a
            random run of consecutive ones in training, else evenly spread ones (PVSE); None takes all.
        made_by: take features made by this encoder alone, as their store names it; None takes any of this width.

    Raises:
        RecipeError: ``num_frames`` below 1.
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
        pooled_by: PooledBy = "mean",
        num_frames: int | None = None,
        made_by: str | None = None,
    ) -> None:
        if num_frames is not None and num_frames < 1:
            raise RecipeError(f"num_frames is {num_frames}: give 1 or more, or none to take all frames")
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
            pooled_by=pooled_by,
            frame_limit=None if num_frames is None else FrameLimit(num_frames),
        )

    def preprocess(self, image: Image, generator: torch.Generator | None = None) -> Float[Tensor, "3 H W"]:
        """Raise ModelError: there is no backbone."""
        raise ModelError(_NO_BACKBONE)

    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Raise ModelError: there is no backbone."""
        raise ModelError(_NO_BACKBONE)
