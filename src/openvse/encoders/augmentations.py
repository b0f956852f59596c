"""Augmentations hide local features of images, or tokens of captions, so that pooling learns sets of every size.

The source is VSE-infinity, section 3.3, with the rates of its released code. All random numbers come from PyTorch's
global CPU generator, which the trainer seeds and checkpoints. Sets of every size are drawn on the CPU, so that no
device has to say how large they are. A step that is captured reads sets that were drawn before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError, nearest
from openvse.functional import compact, keep_at_least_one
from openvse.kernels import is_captured
from openvse.registry import Configured, Registry
from openvse.types import moved, moved_together, on_cpu

AUGMENTED_GRIDS = 0.8  # share of images whose grids lose cells
SMALLEST_GRID_RATE = 0.2  # the rate of a grid is between this share of `rate` and `rate`

TokenMode = Literal["none", "drop", "bert_style"]
MASK_SHARE, RANDOM_SHARE = 0.5, 0.1  # of the chosen tokens, the rest of which is deleted


class Augmentation(Configured, nn.Module, ABC):
    """Hides local features: the mask shrinks, and the features keep their places.

    Attributes:
        removes: whether the encoder removes hidden features instead. The kept features then move to the front, and
            padding of zeros ends at the largest kept set of the batch.
    """

    removes: bool = False

    @abstractmethod
    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return which real features are kept in training. An item may keep none."""

    def hide_at(self, mask: Bool[Tensor, "B N"], boxes: Float[Tensor, "B N 4"]) -> Bool[Tensor, "B N"]:
        """Do the same where the places of features are known (``Features.boxes``), by default without them.

        The mask is on the CPU. The boxes may be on another device (``on_cpu``).
        """
        return self.hide(mask)

    def forward(self, mask: Bool[Tensor, "B N"], boxes: Float[Tensor, "B N 4"] | None = None) -> Bool[Tensor, "B N"]:
        """Return the mask of the kept features: at least one per item in training, and all of them in evaluation."""
        if not self.training or is_captured():
            return mask
        here = on_cpu(mask)
        return moved(self.hide(here) if boxes is None else self.hide_at(here, boxes), mask.device)


class NoAugmentation(Augmentation):
    """Hides nothing."""

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        return mask


class RegionAugmentation(Augmentation):
    """Hides each feature with the same probability. Used for regions of a detector.

    Args:
        rate: the probability, in [0, 1).
        removes: whether hidden features are removed before the projection, as in the released code of VSE-infinity and
            VSE+2AD. The result differs where padding counts (``residual_mlp`` and ``adpool`` with ``count_padding``).

    Raises:
        RecipeError: the rate is out of range.
    """

    def __init__(self, *, rate: float = 0.2, removes: bool = False) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise RecipeError(f"rate is {rate}: give a probability from 0 to below 1")
        self.rate, self.removes = rate, removes

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Decide for each feature at random. Every item keeps at least one."""
        rates = self.rates(mask)  # drawn first
        return keep_at_least_one(torch.rand(mask.shape, device=mask.device) >= rates, mask)

    def rates(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        """Return the probability that a feature is hidden, ``[B, 1]``."""
        return torch.full((len(mask), 1), self.rate, device=mask.device)


class GridAugmentation(RegionAugmentation):
    """Hides cells of 80 % of the images with probability ``rate * u``, where u is uniform in [0.2, 1] per image."""

    def rates(self, mask: Bool[Tensor, "B N"]) -> Tensor:
        rate = super().rates(mask)
        rate *= torch.empty_like(rate).uniform_(SMALLEST_GRID_RATE, 1.0)
        rate *= torch.rand_like(rate) < AUGMENTED_GRIDS
        return rate


AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation", {"grid": GridAugmentation, "none": NoAugmentation, "region": RegionAugmentation}
)


class TokenAugmentation(nn.Module):
    """Deletes or replaces tokens. The remaining ones move to the front.

    ``drop``: each token is deleted with probability ``rate`` (the paper). ``bert_style``: each is chosen with
    probability ``rate``. Half of the chosen ones become the mask token, a tenth a random token, and the rest are
    deleted (the released default). ``none``: nothing happens.

    Each token is drawn separately, unless ``continuing`` names the ids that continue the previous token's word. All
    pieces of a word are then treated alike, as in the released code for BERT. If a word is replaced at random, each of
    its pieces becomes a separate random token.

    Args:
        replacements: the ids from which a random token is drawn.
        protected: the ids that are never chosen, such as sentence boundaries.
    """

    def __init__(
        self,
        mode: TokenMode,
        *,
        rate: float = 0.2,
        mask_id: int | None,
        replacements: Sequence[int],
        protected: Sequence[int] = (),
        continuing: Sequence[int] = (),
    ) -> None:
        super().__init__()
        allowed = list(get_args(TokenMode))
        if mode not in allowed:
            raise RecipeError(f"no size_augmentation {mode!r}{nearest(mode, allowed)} (allowed: {', '.join(allowed)})")
        if not 0 <= rate < 1:
            raise RecipeError(f"augmentation_rate is {rate}: give a probability from 0 to below 1")
        if mode == "bert_style" and (mask_id is None or not replacements):
            raise RecipeError("size_augmentation 'bert_style' needs a tokenizer with a mask token: use 'drop'")
        self.mode = mode
        self.rate = rate
        self.mask_id = mask_id
        self.replacements, self.protected, self.continuing = (
            torch.tensor(list(ids), dtype=torch.int64) for ids in (replacements, protected, continuing)
        )

    def forward(
        self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Int[Tensor, "B M"], Bool[Tensor, "B M"]]:
        """Return the augmented ids and their mask, M <= N. In evaluation both are returned unchanged."""
        if not self.training or self.mode == "none" or is_captured():
            return ids, mask
        device, ids, mask = ids.device, on_cpu(ids), on_cpu(mask)
        chosen = (self._draw(ids) < self.rate) & ~torch.isin(ids, self.protected)
        if self.mode == "bert_style":
            ids, chosen = self._replace(ids, chosen, self._draw(ids))
        ids, mask = compact(ids, keep_at_least_one(~chosen, mask))
        ids, mask = moved_together((ids, mask), device)
        return ids, mask

    def _draw(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """Draw a number in [0, 1) for each token, or one for all pieces of a word."""
        drawn = torch.rand(ids.shape, device=ids.device)
        if not len(self.continuing):
            return drawn
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        first = place.masked_fill(torch.isin(ids, self.continuing), 0).cummax(dim=1).values
        return drawn.gather(1, first)

    def _replace(
        self, ids: Int[Tensor, "B N"], chosen: Bool[Tensor, "B N"], fate: Float[Tensor, "B N"]
    ) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """Replace some of the chosen tokens. Return the ids and the chosen tokens that remain to be deleted."""
        masked = chosen & (fate < MASK_SHARE)
        swapped = chosen & ~masked & (fate < MASK_SHARE + RANDOM_SHARE)
        drawn = self.replacements[torch.randint(len(self.replacements), ids.shape, device=ids.device)]
        ids = torch.where(swapped, drawn, ids.masked_fill(masked, self.mask_id or 0))
        return ids, chosen & ~masked & ~swapped
