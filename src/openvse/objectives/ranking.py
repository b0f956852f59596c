"""The ranking terms, of one score or of one a view, with their miners, which choose negatives, and criteria.

AdOpt (VSE+2AD) is the miner ``adaptive_top_k`` with the criterion ``info_nce``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import MASKED, is_full, kth_largest, mean_where, pairs_of, places_of, rows_at
from openvse.kernels import shapes_are_fixed
from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.types import EmbeddingSet, ScoredBatch, changed, moved, on_cpu


class Contrast(RankingTerm):
    """Contrasts every positive pair with its image's negative texts and its text's negative images.

    ``L = reduce_(i,t) [ l(s_it, S_i., n_i) + l(s_it, S_.t, n_t) ]`` (VSE++ and VSE-infinity, eq. 1). On the scores of
    ``set_max`` it is MV-VSE's L_Max (eq. 9) and PVSE's MIL loss (section 3.4).

    Args:
        miner: the part that chooses the negatives of each anchor.
        criterion: the part that turns a pair and its negatives into a loss.
        reduction: the sum or the mean over the positive pairs of the batch. VSE++ and VSE-infinity use "sum".
        anchors: the side whose items are anchors: ``both``, only the images, which retrieve texts (DeViSE), or only
            the texts.
        negatives_of_one_image: whether two captions of one image in a batch are each other's negatives, as in the
            released code of VSE++ and VSE-infinity, where only the diagonal of a batch of pairs is positive.
        positives: ``all`` positives of an anchor have a loss each, or only the ``hardest``, which has the lowest score:
            the self-expanding loss of ESA (Zhu et al., TCSVT 2023), where ``data.copies`` makes the positives.

    Raises:
        RecipeError: ``negatives_of_one_image`` leaves one positive, and ``positives`` is ``hardest``.
    """

    def __init__(
        self,
        *,
        miner: Miner,
        criterion: Criterion,
        reduction: Literal["sum", "mean"] = "sum",
        anchors: Literal["both", "images", "texts"] = "both",
        negatives_of_one_image: bool = False,
        positives: Literal["all", "hardest"] = "all",
    ) -> None:
        super().__init__(miner=miner, criterion=criterion, reduction=reduction)
        if negatives_of_one_image and positives == "hardest":
            raise RecipeError(
                "contrast got positives: hardest, and negatives_of_one_image leaves a pair one positive: change one"
            )
        self.anchors = anchors
        self.negatives_of_one_image, self.positives = negatives_of_one_image, positives

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        batch = self._compared(batch)
        if self.anchors == "both":
            return self.both_ways(batch.scores, batch.positives)
        if self.anchors == "images":
            return self.one_way(batch.scores, batch.positives)
        return self.one_way(batch.scores.T, changed(batch.positives, Tensor.t))

    def one_way(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> Float[Tensor, ""]:
        """Return the loss of the rows as anchors, with all of their positives or with the hardest."""
        if self.positives == "all":
            return super().one_way(scores, positives)
        negatives = self.miner(scores, positives)
        lowest = scores.masked_fill(~positives, torch.inf).argmin(dim=1, keepdim=True)
        (anchors,) = places_of(on_cpu(positives).any(dim=1), positives.device)
        return self.reduce(self.criterion.at(scores, anchors, lowest[anchors, 0], negatives))

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        return super().diagnostics(self._compared(batch))

    def _compared(self, batch: ScoredBatch) -> ScoredBatch:
        """Give each pair a row in which only its own text is positive, if captions of one image are negatives."""
        if not self.negatives_of_one_image or shapes_are_fixed():  # see ``pairs_of``
            return batch
        images, texts = places_of(batch.positives)
        alone = torch.zeros(len(texts), batch.positives.shape[1], dtype=torch.bool)
        alone.scatter_(1, on_cpu(texts)[:, None], True)
        return replace(batch, scores=batch.scores[images], positives=moved(alone, texts.device))


class Hinge(Criterion):
    """``sum_n [margin - s_p + s_n]_+`` over an anchor's negatives n (VSE++ and VSE-infinity, eq. 1).

    Args:
        margin: how much larger the score of the positive must be.
        reduction: the sum or the mean over an anchor's negatives. PVSE averages (section 3.4).
    """

    def __init__(self, *, margin: float = 0.2, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        self.margin = margin
        self.reduction = reduction

    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        violations = scores - (positive - self.margin).unsqueeze(1)
        total = violations.masked_fill((violations < 0) >= negatives, 0.0).sum(dim=1)  # below 0, or no negative
        return total if self.reduction == "sum" else total / negatives.sum(dim=1).clamp(min=1)

    @torch.no_grad()
    def violated(self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"]) -> Bool[Tensor, "P C"]:
        """Return the candidates whose score is closer to the positive's than the margin."""
        return scores > (positive - self.margin).unsqueeze(1)


class InfoNCE(Criterion):
    """``-log( e^(s_p/t) / (e^(s_p/t) + sum_n e^((s_n + m)/t)) )`` (van den Oord et al. 2018, CLIP, VSE+2AD).

    AdOpt (VSE+2AD) is the miner ``adaptive_top_k`` with this criterion. ``AdaptiveTopK`` shows the recipe.

    Deviation: VSE+2AD prints the sum without the positive and without a margin. Its released code has both, with m =
    0.2. The paper and the code use t = 0.05.

    Args:
        temperature: t, the number that divides the scores.
        learned: whether to train t, starting from ``temperature``. t is kept at 0.01 or above, as in CLIP.
        margin: m, the number added to the negatives' scores.

    Raises:
        RecipeError: the temperature is not positive.
    """

    MIN_TEMPERATURE = 0.01

    def __init__(self, *, temperature: float = 0.05, learned: bool = False, margin: float = 0.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise RecipeError(f"info_nce got temperature = {temperature}: it must be above 0 (usual: 0.01 to 0.1)")
        start = torch.tensor(math.log(1.0 / temperature))
        self.learned = learned
        self.margin = margin
        self.log_scale: Tensor
        if learned:
            self.log_scale = nn.Parameter(start)
        else:
            self.register_buffer("log_scale", start)

    def pair_loss(
        self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"], negatives: Bool[Tensor, "P C"]
    ) -> Float[Tensor, "P"]:
        """Compute ``logsumexp(positive and negatives) - positive`` at the temperature, without overflow."""
        log_scale = self.log_scale
        if self.learned:
            log_scale = log_scale.clamp(max=-math.log(self.MIN_TEMPERATURE))
        scale = log_scale.exp().to(scores.dtype)
        others = ((scores + self.margin) * scale).masked_fill(~negatives, MASKED)
        positive = positive * scale
        return torch.cat([positive.unsqueeze(1), others], dim=1).logsumexp(dim=1) - positive


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

    def diagnostics(self, scores: Float[Tensor, "A C"], positives: Bool[Tensor, "A C"]) -> dict[str, Float[Tensor, ""]]:
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
        return chosen.nan_to_num().clamp(1, max(candidates - 1, 1)).long()


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
    if products.shape[-1] == 1 and is_full(texts.mask):
        return products.squeeze(-1)
    return products.masked_fill(~texts.mask, MASKED).amax(dim=-1)


def view_diagnostics(batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
    """Return the share of the positive pairs that each view wins (MV-VSE, Fig. 4c, d), and how similar the views are.

    ``view_similarity`` is the mean cosine between two views of an image. It is left out at K = 1.
    """
    views = view_scores(batch.images, batch.texts)
    num_views = len(views)
    images, texts = pairs_of(batch.positives)
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
        self, *, miner: Miner, criterion: Criterion, reduction: Literal["sum", "mean"] = "sum", gated: bool = True
    ) -> None:
        super().__init__(miner=miner, criterion=criterion, reduction=reduction)
        self.gated = gated

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        """Add the two directions. K = 1 is the plain contrast."""
        return self.both_ways(view_scores(batch.images, batch.texts), batch.positives)

    def one_way(self, scores: Float[Tensor, "*K A C"], positives: Bool[Tensor, "A C"]) -> Float[Tensor, ""]:
        views, best = scores, scores.amax(dim=0)
        anchors, candidates = pairs_of(positives)
        negatives, rivals = rows_at(self.miner(best, positives), anchors), rows_at(best, anchors)
        if self.gated:
            harmless = ~self.criterion.violated(best[anchors, candidates], rivals)
            rivals = rivals.masked_fill(harmless, MASKED)
        num_views = len(views)
        losses = self.criterion.pair_loss(
            views[:, anchors, candidates].flatten(), rivals.repeat(num_views, 1), negatives.repeat(num_views, 1)
        )
        return self.reduce(losses.view(num_views, -1).mean(dim=0))
