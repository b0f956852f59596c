"""The ranking term: a miner and a criterion, in both directions."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from openvse.objectives.base import RankingTerm
from openvse.types import ScoredBatch


class Contrast(RankingTerm):
    """Contrasts every positive pair with its image's negative texts and its text's negative images.

    ``L = reduce_(i,t) [ l(s_it, S_i., n_i) + l(s_it, S_.t, n_t) ]`` (VSE++; VSE-infinity, eq. 1). On the scores of
    ``set_max`` it is MV-VSE's L_Max (eq. 9) and PVSE's MIL loss (section 3.4).
    """

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the two directions."""
        return self.both_ways(batch.scores, batch.positives)
