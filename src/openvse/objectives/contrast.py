"""The ranking term: a miner and a criterion, in both directions."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.types import ScoredBatch


class Contrast(RankingTerm):
    """Contrasts every positive pair with its image's negative texts and its text's negative images.

    ``L = reduce_(i,t) [ l(s_it, S_i., n_i) + l(s_it, S_.t, n_t) ]`` (VSE++; VSE-infinity, eq. 1). On the scores of
    ``set_max`` it is MV-VSE's L_Max (eq. 9) and PVSE's MIL loss (section 3.4).

    Args:
        miner: the part that chooses the negatives of each anchor.
        criterion: the part that turns a pair and its negatives into a loss.
        reduction: the sum or the mean over the positive pairs of the batch; VSE++ and VSE-infinity use "sum".
        anchors: the side whose items are anchors: ``both``, or only the images, which retrieve texts (DeViSE), or only
            the texts.
    """

    def __init__(
        self,
        *,
        miner: Miner,
        criterion: Criterion,
        reduction: Literal["sum", "mean"] = "sum",
        anchors: Literal["both", "images", "texts"] = "both",
    ) -> None:
        super().__init__(miner=miner, criterion=criterion, reduction=reduction)
        self.anchors = anchors

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the two directions, or take one."""
        if self.anchors == "both":
            return self.both_ways(batch.scores, batch.positives)
        if self.anchors == "images":
            return self.one_way(batch.scores, batch.positives)
        return self.one_way(batch.scores.T, batch.positives.T)
