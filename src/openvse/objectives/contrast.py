"""The ranking term, a miner and a criterion in both directions, and the criteria: losses of a positive pair."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import MASKED, places_of, transposed
from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.types import ScoredBatch, moved, on_cpu


class Contrast(RankingTerm):
    """Contrasts every positive pair with its image's negative texts and its text's negative images.

    ``L = reduce_(i,t) [ l(s_it, S_i., n_i) + l(s_it, S_.t, n_t) ]`` (VSE++ and VSE-infinity, eq. 1). On the scores of
    ``set_max`` it is MV-VSE's L_Max (eq. 9) and PVSE's MIL loss (section 3.4).

    Args:
        miner: the part that chooses the negatives of each anchor.
        criterion: the part that turns a pair and its negatives into a loss.
        reduction: the sum or the mean over the positive pairs of the batch. VSE++ and VSE-infinity use "sum".
        anchors: the side whose items are anchors: ``both``, or only the images, which retrieve texts (DeViSE), or only
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
        return self.one_way(batch.scores.T, transposed(batch.positives))

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
        if not self.negatives_of_one_image:
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
        violations = (self.margin - positive.unsqueeze(1) + scores).clamp(min=0)
        total = violations.masked_fill(~negatives, 0.0).sum(dim=1)
        return total if self.reduction == "sum" else total / negatives.sum(dim=1).clamp(min=1)

    @torch.no_grad()
    def violated(self, positive: Float[Tensor, "P"], scores: Float[Tensor, "P C"]) -> Bool[Tensor, "P C"]:
        """Return the candidates whose score is closer to the positive's than the margin."""
        return self.margin - positive.unsqueeze(1) + scores > 0


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
            raise RecipeError(
                f"info_nce got temperature = {temperature}: it must be above 0 (usual: 0.01 to 0.1)"
            )
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
        joint = torch.cat([(positive * scale).unsqueeze(1), others], dim=1)
        return joint.logsumexp(dim=1) - joint[:, 0]
