"""Miners choose which candidates of an anchor count as its negatives.

AdOpt (VSE+2AD) is the miner ``adaptive_top_k`` with the criterion ``info_nce``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import MASKED, kth_largest, mean_where
from openvse.objectives.base import Miner


class All(Miner):
    """Every candidate that is not a positive."""

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        return torch.ones_like(positives)


class Hardest(Miner):
    """The negative with the highest score (VSE++ and VSE-infinity, eq. 1)."""

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose the highest score with the positives at minus infinity. 0 would win if all scores are negative."""
        hardest = scores.masked_fill(positives, MASKED).argmax(dim=1, keepdim=True)
        return torch.zeros_like(positives).scatter_(1, hardest, True)


class Random(Miner):
    """Negatives drawn at random in each step.

    With ``within`` at the margin of the hinge it is the sampling of DeViSE (Frome et al., NIPS 2013, section 3.3),
    which reads the negatives in random order and stops at the first that violates the margin.

    Args:
        num_negatives: the number of negatives of each anchor. An anchor with fewer uses all of them.
        within: candidates scoring at most this far below the anchor's lowest positive are drawn first. The others are
            drawn only if too few are that near. None draws from all.

    Raises:
        RecipeError: ``num_negatives`` is below 1.
    """

    def __init__(self, *, num_negatives: int = 1, within: float | None = None) -> None:
        super().__init__()
        if num_negatives < 1:
            raise RecipeError(f"random got num_negatives = {num_negatives}: it must be at least 1")
        self.num_negatives = num_negatives
        self.within = within

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose the candidates with the largest random numbers. Near ones come before the others."""
        order = torch.rand_like(scores)
        if self.within is not None:
            lowest = scores.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
            order += (scores > lowest - self.within).to(order.dtype)
        order = order.masked_fill(positives, MASKED)
        chosen = order.topk(min(self.num_negatives, scores.shape[1]), dim=1).indices
        return torch.zeros_like(positives).scatter_(1, chosen, True)


class AdaptiveTopK(Miner):
    """The K hardest negatives of each anchor, with K from the maturity of the batch's scores (VSE+2AD, eq. 6).

    AdOpt, the adaptive objective of VSE+2AD (section 3.3), is this miner with the criterion ``info_nce``. In a recipe::

        objective:
          ranking:
            name: contrast
            miner: adaptive_top_k
            criterion: {name: info_nce, temperature: 0.05, margin: 0.2}
            reduction: mean

    With ``align``, the mean score of the positive pairs, and C, the number of candidates:

    - ``released``: ``K = floor( C cos( (align + u)^1.25 ) ) + 1``, u the mean of ``e^(-s)`` (see ``uniformity``),
    - ``paper``: ``K = floor( C cos( (align + u) pi/4 ) )``, u the log of the mean of ``e^s`` over all pairs,

    and K is kept in [1, C - 1]. By the printed rule K hardly shrinks: once a model is trained, u is near 0 and align is
    below 1, so that K stays above 0.7 C. By the released rule K falls to a handful, as in Fig. C-2 of the paper.

    Deviation: the released code masks positives with 0 before it mines, so it mines them while scores are low. Here
    they are never mined.

    Args:
        rule: how K is computed from the scores.
        uniformity: the pairs over which u of the released rule is averaged. ``off_diagonal`` takes the negative pairs.
            ``all_cells`` takes all pairs, with each positive as a score of 0, as in the released code. u is then nearer
            to 1, which changes K by one in about a third of batches. ``paper`` has its own u.
    """

    def __init__(
        self,
        *,
        rule: Literal["released", "paper"] = "released",
        uniformity: Literal["off_diagonal", "all_cells"] = "off_diagonal",
    ) -> None:
        super().__init__()
        self.rule = rule
        self.uniformity = uniformity

    def mine(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Bool[Tensor, "A C"]:
        """Choose the K highest scores with the positives at minus infinity, and all that tie with the last."""
        candidates = scores.masked_fill(positives, MASKED)
        hardest = kth_largest(candidates, self._num_negatives(scores, positives))
        return candidates >= hardest.unsqueeze(1)

    def diagnostics(
        self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return K, and the alignment and uniformity from which it is computed (VSE+2AD, Fig. C-2)."""
        align, uniformity = self._maturity(scores, positives)
        num_negatives = self._num_negatives(scores, positives)
        return {"num_negatives": num_negatives.float(), "align": align, "uniformity": uniformity}

    def _maturity(self, scores: Tensor, positives: Tensor) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        align = mean_where(scores, positives)
        if self.rule == "paper":
            return align, scores.exp().mean().log()
        if self.uniformity == "all_cells":
            return align, scores.masked_fill(positives, 0.0).neg().exp().mean()
        # A batch without negatives has nothing to mine. 0 keeps K a number.
        return align, mean_where(scores.neg().exp(), ~positives)

    def _num_negatives(self, scores: Tensor, positives: Tensor) -> Int[Tensor, ""]:
        candidates = scores.shape[1]
        wide = torch.float64 if scores.device.type == "cpu" else torch.float32
        align, uniformity = (each.to(wide) for each in self._maturity(scores, positives))
        if self.rule == "paper":
            chosen = (candidates * ((align + uniformity) * (math.pi / 4)).cos()).floor()
        else:
            # It is below 0 only if positives score worse than in any trained model. Maturity is then lowest.
            chosen = (candidates * ((align + uniformity).clamp(min=0) ** 1.25).cos()).floor() + 1
        # Scores that are not numbers have no K. Their loss is no number either, and the trainer stops there.
        return chosen.nan_to_num().clamp(max=candidates - 1).clamp(min=1).long()
