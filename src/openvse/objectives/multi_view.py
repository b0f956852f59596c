"""The terms of MV-VSE, which train every view of an image, and their diagnostics of the views."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import MASKED, places_of, transposed
from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.types import EmbeddingSet, ScoredBatch, on_cpu


def view_scores(images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "K I T"]:
    """Score each of the K views of the images: ``s(v_k, t) = cos(v_k, t)`` (MV-VSE, eq. 5).

    In MV-VSE a text has one embedding. If it has several, a view is scored with the best of them, so that the maximum
    over the views is always the ``set_max`` score. Raise RecipeError if the numbers of views differ.
    """
    if not bool(on_cpu(images.mask).all()):
        raise RecipeError(
            "a multi-view term needs the same number of embeddings for every image, and this image aggregator "
            "yields as many as an image has elements: choose one with a fixed number, such as multi_view"
        )
    products = torch.einsum("ikd,tld->kitl", images.vectors, texts.vectors)
    return products.masked_fill(~texts.mask, MASKED).amax(dim=-1)


def view_diagnostics(batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
    """Return the share of the positive pairs that each view wins (MV-VSE, Fig. 4c, d), and how similar the views are.

    ``view_similarity`` is the mean cosine between two views of an image. It is left out at K = 1.
    """
    views = view_scores(batch.images, batch.texts)
    num_views = len(views)
    images, texts = places_of(batch.positives)
    winners = views[:, images, texts].argmax(dim=0)
    report = {f"won_by_view_{k}": (winners == k).sum() / max(len(winners), 1) for k in range(num_views)}
    if num_views > 1:
        vectors = batch.images.vectors
        pairs = torch.triu_indices(num_views, num_views, offset=1, device=vectors.device)
        cosines = (vectors @ vectors.mT)[:, pairs[0], pairs[1]]
        report["view_similarity"] = cosines.mean()
    return report


class _OfViews(RankingTerm):
    """A term on the scores of each view, which also reports what the views do."""

    scores_views: ClassVar[bool] = True

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the diagnostics of the miner and the share of pairs that each view wins."""
        return super().diagnostics(batch) | view_diagnostics(batch)


class MultiViewAverage(_OfViews):
    """The mean over the views of each view's own contrast. Each view mines its own negatives.

    ``L_Avg = 1/K sum_k { [a - s(v_k,t) + s(v_k,t^)]_+ + [a - s(v_k,t) + s(v^_k,t)]_+ }`` (MV-VSE, eq. 8), with any
    miner and criterion. It pulls all views of an image to each of its texts.

    Raises:
        RecipeError: in the forward pass, the images differ in their number of views.
    """

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Average the contrast over the views. K = 1 is the plain contrast."""
        views = view_scores(batch.images, batch.texts)
        return torch.stack([self.both_ways(view, batch.positives) for view in views]).mean()


class MultiViewBound(_OfViews):
    """An upper bound of the contrast on ``s* = max_k s(v_k, t)`` that gives every view a gradient.

    ``L_Up = 1/K sum_k { [a - s(v_k,t) + s*(V,T^)]_+ 1(V,T^) + [a - s(v_k,t) + s*(V^,T)]_+ 1(V^,T) }`` (MV-VSE,
    eq. 10). The indicator (eq. 11, 12) is 1 where all views violate the margin. As the best view violates it least,
    that is ``a - s*(V,T) + s*_neg > 0``: a negative that adds nothing for the best view adds nothing for any view.
    ``gated: false`` drops the indicator (L_Rough, eq. 13). L_Max <= L_Up <= L_Rough always holds (eq. 14).

    MV-VSE's objective (eq. 15) is a ``contrast`` on s* with weight lambda = 0.7 plus this term with weight 0.3.
    With ``info_nce`` it is the normalised-softmax version, whose two bounds are equal, as a softmax is never 0.

    Args:
        miner: the part that chooses the negatives under s*.
        criterion: the criterion. The paper uses hinge.
        reduction: the sum or the mean over the positive pairs of the batch.
        gated: whether a negative that does not violate the margin of the best view is ignored for all views.

    Raises:
        RecipeError: in the forward pass, the images differ in their number of views.
    """

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
        """Add the two directions. K = 1 is the plain contrast."""
        return self.of_views(view_scores(batch.images, batch.texts), batch.positives)

    def of_views(self, views: Float[Tensor, "K I T"], positives: Bool[Tensor, "I T"]) -> Float[Tensor, ""]:
        """Return the term's value from the scores of each view."""
        return self._one_way(views, positives) + self._one_way(views.mT, transposed(positives))

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
