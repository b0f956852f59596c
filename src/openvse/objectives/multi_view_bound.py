"""The upper bounds of MV-VSE, which train all views at once."""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.functional import MASKED, places_of, transposed
from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.objectives.views import view_diagnostics, view_scores
from openvse.types import ScoredBatch


class MultiViewBound(RankingTerm):
    """An upper bound of the contrast on ``s* = max_k s(v_k, t)`` that gives every view a gradient.

    ``L_Up = 1/K sum_k { [a - s(v_k,t) + s*(V,T^)]_+ 1(V,T^) + [a - s(v_k,t) + s*(V^,T)]_+ 1(V^,T) }`` (MV-VSE,
    eq. 10). The indicator (eq. 11, 12) is 1 where all views violate the margin. As the best view violates it least,
    that is ``a - s*(V,T) + s*_neg > 0``: a negative that adds nothing for the best view adds nothing for any view.
    ``gated: false`` drops the indicator (L_Rough, eq. 13); L_Max <= L_Up <= L_Rough always holds (eq. 14).

    MV-VSE's objective (eq. 15) is a ``contrast`` on s* with weight lambda = 0.7 plus this term with weight 0.3.
    With ``info_nce`` it is the normalised-softmax version, whose two bounds are equal, as a softmax is never 0.

    Args:
        miner: the part that chooses the negatives under s*.
        criterion: the criterion; the paper uses hinge.
        reduction: the sum or the mean over the positive pairs of the batch.
        gated: whether a negative that does not violate the margin of the best view is ignored for all views.

    Raises:
        RecipeError: in the forward pass, the images differ in their number of views.
    """

    scores_views: ClassVar[bool] = True

    def __init__(
        self,
        *,
        miner: Miner,
        criterion: Criterion,
        reduction: Literal["sum", "mean"] = "sum",
        gated: bool = True,
    ) -> None:
        super().__init__(miner=miner, criterion=criterion, reduction=reduction)
        self.gated = gated

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the two directions; K = 1 is the plain contrast."""
        return self.of_views(view_scores(batch.images, batch.texts), batch.positives)

    def of_views(self, views: Float[Tensor, "K I T"], positives: Bool[Tensor, "I T"]) -> Float[Tensor, ""]:
        """Return the term's value from the scores of each view."""
        return self._one_way(views, positives) + self._one_way(views.mT, transposed(positives))

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the diagnostics of the miner and the share of pairs that each view wins."""
        return super().diagnostics(batch) | view_diagnostics(batch)

    def _one_way(self, views: Float[Tensor, "K A C"], positives: Bool[Tensor, "A C"]) -> Float[Tensor, ""]:
        best = views.amax(dim=0)
        anchors, candidates = places_of(positives)
        negatives = self.miner(best, positives)[anchors]
        rivals = best[anchors]
        if self.gated:
            harmless = ~self.criterion.violated(best[anchors, candidates], rivals)
            rivals = rivals.masked_fill(harmless, MASKED)
        num_views = len(views)
        losses = self.criterion.pair_loss(
            views[:, anchors, candidates].flatten(),
            rivals.repeat(num_views, 1),
            negatives.repeat(num_views, 1),
        )
        return self.reduce(losses.view(num_views, -1).mean(dim=0))
