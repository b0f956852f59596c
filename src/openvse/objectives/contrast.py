"""The ranking term: a miner and a criterion, in both directions."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from openvse.objectives.base import Criterion, Miner, Term
from openvse.types import ScoredBatch


class Contrast(Term):
    """Every positive pair against its image's negative texts and its text's negative images.

    ``L = reduce_(i,t) [ l(s_it, S_i., n_i) + l(s_it, S_.t, n_t) ]`` (VSE++; VSE-infinity, eq. 1).

    Args:
        miner: chooses the negatives of each anchor.
        criterion: turns a pair and its negatives into a loss.
        reduction: over the positive pairs of the batch; "sum" is what VSE++ and VSE-infinity do.
    """

    def __init__(
        self, *, miner: Miner, criterion: Criterion, reduction: Literal["sum", "mean"] = "sum"
    ) -> None:
        super().__init__()
        self.miner = miner
        self.criterion = criterion
        self.reduction = reduction

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the two directions."""
        i2t = self._one_way(batch.scores, batch.positives)
        return i2t + self._one_way(batch.scores.T, batch.positives.T)

    def _one_way(self, scores: Tensor, positives: Tensor) -> Float[Tensor, ""]:
        losses: Tensor = self.criterion(scores, positives, self.miner(scores, positives))
        return losses.sum() if self.reduction == "sum" else losses.mean()
