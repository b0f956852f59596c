"""Miners: which candidates of an anchor count as its negatives."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.functional import MASKED
from openvse.objectives.base import Miner


class All(Miner):
    """Every candidate that is not a positive."""

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose all."""
        return torch.ones_like(positives)


class Hardest(Miner):
    """The one negative with the highest score (VSE++; VSE-infinity, eq. 1)."""

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose the highest score once the positives are at minus infinity: 0 would win where all are negative."""
        hardest = scores.masked_fill(positives, MASKED).argmax(dim=1, keepdim=True)
        return torch.zeros_like(positives).scatter_(1, hardest, True)
