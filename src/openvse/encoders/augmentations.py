"""Augmentations hide local features of images in training, so that pooling learns sets of every size.

The source is VSE-infinity, section 3.3; the rates for regions and grids are those of its released code. All random
numbers come from PyTorch's global generator, which the trainer seeds and checkpoints. The augmentation of tokens is
in ``size_augmentation``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import keep_at_least_one
from openvse.registry import Configured, Registry

AUGMENTED_GRIDS = 0.8  # share of images whose grids lose cells
SMALLEST_GRID_RATE = 0.2  # the rate of a grid is between this share of `rate` and `rate`


class Augmentation(Configured, nn.Module, ABC):
    """Hides local features: the mask shrinks, and the features stay where they are."""

    @abstractmethod
    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return which real features are kept in training; an item may keep none."""

    def forward(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask of the kept features: at least one per item in training, and all of them in evaluation."""
        return self.hide(mask) if self.training else mask


class NoAugmentation(Augmentation):
    """Hides nothing."""

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask unchanged."""
        return mask


class RegionAugmentation(Augmentation):
    """Hides each feature with the same probability; used for regions of a detector.

    Args:
        rate: the probability, in [0, 1).

    Raises:
        RecipeError: the rate is out of range.
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
    """Hides cells of 80 % of the images with probability ``rate * u``, where u is uniform in [0.2, 1] per image."""

    def rates(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        """Draw the rate of each image."""
        rate = super().rates(mask)
        rate *= torch.empty_like(rate).uniform_(SMALLEST_GRID_RATE, 1.0)
        rate *= torch.rand_like(rate) < AUGMENTED_GRIDS
        return rate


AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation", {"grid": GridAugmentation, "none": NoAugmentation, "region": RegionAugmentation}
)
