"""The ranking term: a miner and a criterion, in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import places_of, transposed
from openvse.objectives.base import Criterion, Miner, RankingTerm
from openvse.types import ScoredBatch, moved, on_cpu


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
        negatives_of_one_image: whether two captions of one image in a batch are each other's negatives, as in the
            released code of VSE++ and VSE-infinity, where only the diagonal of a batch of pairs is positive.
        positives: ``all`` positives of an anchor have a loss each, or only the ``hardest``, that with the lowest score:
            the self-expanding loss of ESA (Zhu et al., TCSVT 2023), where ``data.copies`` makes the positives.

    Raises:
        RecipeError: ``negatives_of_one_image`` leaves one positive, and the hardest of several is wanted.
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
