"""Every view trained separately: the baseline of MV-VSE."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.objectives.base import RankingTerm
from openvse.objectives.views import view_diagnostics, view_scores
from openvse.types import ScoredBatch


class MultiViewAverage(RankingTerm):
    """The mean over the views of each view's own contrast; each view mines its own negatives.

    ``L_Avg = 1/K sum_k { [a - s(v_k,t) + s(v_k,t^)]_+ + [a - s(v_k,t) + s(v^_k,t)]_+ }`` (MV-VSE, eq. 8), with any
    miner and criterion. It pulls all views of an image to each of its texts.

    Raises:
        RecipeError: in the forward pass, the images differ in their number of views.
    """

    scores_views: ClassVar[bool] = True

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Average the contrast over the views; K = 1 is the plain contrast."""
        views = view_scores(batch.images, batch.texts)
        return torch.stack([self.both_ways(view, batch.positives) for view in views]).mean()

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the diagnostics of the miner and the share of pairs that each view wins."""
        return super().diagnostics(batch) | view_diagnostics(batch)
