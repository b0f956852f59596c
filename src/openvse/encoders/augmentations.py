"""What training hides of an image's local features, so that pooling learns sets of every size, by name in a recipe.

VSE-infinity, section 3.3; the rates of the two kinds of features are those of its released code. Everything random
comes from PyTorch's global generator, which the trainer seeds and checkpoints. What happens to tokens is in
``size_augmentation``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import keep_at_least_one
from openvse.registry import Configured, Registry

AUGMENTED_GRIDS = 0.8  # share of grid images that lose cells at all
SMALLEST_GRID_RATE = 0.2  # a grid's own rate lies between this share of `rate` and `rate`


class Augmentation(Configured, nn.Module, ABC):
    """Hides local features: the mask shrinks, the features stay where they are."""

    @abstractmethod
    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return which real features are kept in training; none at all is allowed."""

    def forward(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask of the features that are kept: at least one of each item, and all of them in evaluation."""
        return self.hide(mask) if self.training else mask


class NoAugmentation(Augmentation):
    """Hides nothing."""

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask as it is."""
        return mask


class RegionAugmentation(Augmentation):
    """Hides each feature with the same probability: for regions of a detector.

    Args:
        rate: that probability, in [0, 1).

    Raises:
        RecipeError: another rate.
    """

    def __init__(self, *, rate: float = 0.2) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise RecipeError(f"rate is {rate}: give a probability from 0 to below 1")
        self.rate = rate

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Decide for each feature at random; every item keeps at least one."""
        rates = self.rates(mask)  # drawn first
        return keep_at_least_one(torch.rand(mask.shape, device=mask.device) >= rates, mask)

    def rates(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        """Return the probability that a feature is hidden, ``[B, 1]``."""
        return torch.full((len(mask), 1), self.rate, device=mask.device)


class GridAugmentation(RegionAugmentation):
    """Hides cells of 80 % of the images, with probability ``rate * u``, u uniform in [0.2, 1] for each image."""

    def rates(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        """Draw the rate of each image."""
        rate = super().rates(mask)
        rate *= torch.empty_like(rate).uniform_(SMALLEST_GRID_RATE, 1.0)
        rate *= torch.rand_like(rate) < AUGMENTED_GRIDS
        return rate


AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation", {"grid": GridAugmentation, "none": NoAugmentation, "region": RegionAugmentation}
)
