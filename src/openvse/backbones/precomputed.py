"""Images whose local features (regions, grids, frames) were made elsewhere and are in a feature store."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from PIL.Image import Image
from torch import nn

from openvse.backbones.base import Backbone, FrameLimit
from openvse.errors import ModelError, RecipeError
from openvse.types import Inputs

_NO_NETWORK = (
    "encoder 'precomputed' cannot read images: give stored features, or use an encoder with a backbone"
)


class Precomputed(Backbone):
    """Has no network: features come from a store. Default projection and augmentation are VSE-infinity's for regions.

    Args:
        feature_dim: C, the width of the stored features (2048 for bottom-up attention).
        num_frames: the largest number of features of a clip that the model sees, if the features are frames in order of
            time: a random run of them in training, otherwise evenly spread ones (PVSE). None takes all.
        made_by: the only backbone whose features are accepted, as their store names it. None accepts any of this width.

    Raises:
        RecipeError: ``num_frames`` is below 1.
    """

    reads_images: ClassVar[bool] = False
    usual_projection: ClassVar[str] = "residual_mlp"
    usual_augmentation: ClassVar[str] = "region"

    def __init__(
        self, *, feature_dim: int, num_frames: int | None = None, made_by: str | None = None
    ) -> None:
        if num_frames is not None and num_frames < 1:
            raise RecipeError(f"num_frames is {num_frames}: give 1 or more, or none to take all frames")
        super().__init__(nn.Identity(), feature_dim=feature_dim, fingerprint=made_by)
        self.frame_limit = None if num_frames is None else FrameLimit(num_frames)

    def preprocess(self, image: Image) -> NoReturn:
        raise ModelError(_NO_NETWORK)

    def see(self, inputs: Inputs) -> NoReturn:
        raise ModelError(_NO_NETWORK)
