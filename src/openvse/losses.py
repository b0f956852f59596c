"""The ranking losses of the papers for your own training loop, on two tensors of embeddings or on scores.

Each function makes a ``Loss``, a module that computes the same number as the objective term that a recipe names::

    loss = openvse.losses.adopt(temperature=0.1)
    loss(images, texts).backward()         # [B, D] each, the i-th text belongs to the i-th image
    loss.from_scores(scores).backward()    # or a matrix of scores, images in rows

A loss adds up both directions: images that retrieve texts, and texts that retrieve images.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.errors import DataError
from openvse.functional import require_one_space, set_max_scores, unit_embeddings
from openvse.objectives import MINERS
from openvse.objectives.base import RankingTerm
from openvse.objectives.ranking import AdaptiveTopK, Contrast, Hinge, InfoNCE, MultiViewBound
from openvse.types import EmbeddingSet, ScoredBatch

__all__ = ["Loss", "adopt", "info_nce", "mil", "multi_view_bound", "triplet"]

Negatives: TypeAlias = Literal["hardest", "all"]
Reduction: TypeAlias = Literal["sum", "mean"]


class Loss(nn.Module):
    """A ranking loss on embeddings or on scores.

    Args:
        term: the objective term that computes the loss. See ``openvse.objectives``.
    """

    def __init__(self, term: RankingTerm) -> None:
        super().__init__()
        self.term = term

    def forward(
        self, images: Tensor | EmbeddingSet, texts: Tensor | EmbeddingSet, positives: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Compute the loss of a batch of embeddings, which are scaled to unit length first.

        The score of two items is the cosine of their embeddings. With several embeddings each, the best pair counts.

        Args:
            images: float ``[I, D]``, ``[I, K, D]`` for K embeddings per item, or the output of a tower.
            texts: the same for the texts. Their K may differ.
            positives: which text belongs to which image: int ``[T]``, the image of each text, or bool ``[I, T]``. By
                default the i-th text belongs to the i-th image.

        Raises:
            DataError: the shapes do not fit together, or ``positives`` is missing although I and T differ.
        """
        image_set, text_set = unit_embeddings(images, "images"), unit_embeddings(texts, "texts")
        require_one_space(image_set, text_set)
        scores = set_max_scores(image_set, text_set)
        pairs = _positives(scores, positives)
        return cast(Tensor, self.term(ScoredBatch(scores, pairs, image_set, text_set)))

    def from_scores(self, scores: Tensor, positives: Tensor | None = None) -> Float[Tensor, ""]:
        """Compute the loss from scores of any origin, where a higher score is better.

        Args:
            scores: float ``[I, T]``. The MV-VSE bound takes ``[K, I, T]`` too: the scores of each of the K views.
            positives: as for a call.

        Raises:
            DataError: the shapes do not fit together, or ``positives`` is missing although I and T differ.
        """
        is_bound = isinstance(self.term, MultiViewBound)
        if not isinstance(scores, Tensor):
            raise DataError(f"the scores have the type {type(scores).__name__}: give a float tensor [images, texts]")
        if scores.dim() not in ((2, 3) if is_bound else (2,)) or not scores.is_floating_point():
            views = " or [views, images, texts]" if is_bound else ""
            raise DataError(f"the scores are {scores.dtype} {list(scores.shape)}: give floats [images, texts]{views}")
        if isinstance(self.term, MultiViewBound):
            views_of_pairs = scores if scores.dim() == 3 else scores.unsqueeze(0)
            return self.term.both_ways(views_of_pairs, _positives(views_of_pairs[0], positives))
        return self.term.both_ways(scores, _positives(scores, positives))


def triplet(*, margin: float = 0.2, negatives: Negatives = "hardest", reduction: Reduction = "sum") -> Loss:
    """Return the triplet loss of VSE++, ``[margin - s(i,t) + s(i,t^)]_+`` (Faghri et al. 2018, eq. 5 and 6).

    Args:
        margin: the lead that a positive pair needs over a negative pair.
        negatives: ``hardest`` counts the one negative that scores best (VSE++), ``all`` adds all of them up.
        reduction: the mean or the sum over the positive pairs of the batch.
    """
    return Loss(Contrast(miner=MINERS.get(negatives)(), criterion=Hinge(margin=margin), reduction=reduction))


def info_nce(
    *, temperature: float = 0.05, margin: float = 0.0, learned: bool = False, reduction: Reduction = "mean"
) -> Loss:
    """Return InfoNCE over all negatives of the batch, the loss of CLIP (van den Oord et al. 2018).

    Args:
        temperature: the divisor of the scores.
        margin: the number added to the scores of the negatives.
        learned: whether to train the temperature. If so, give ``loss.parameters()`` to the optimiser too.
        reduction: the mean or the sum over the positive pairs of the batch.

    Raises:
        RecipeError: the temperature is not positive.
    """
    criterion = InfoNCE(temperature=temperature, learned=learned, margin=margin)
    return Loss(Contrast(miner=MINERS.get("all")(), criterion=criterion, reduction=reduction))


def adopt(
    *,
    temperature: float = 0.05,
    margin: float = 0.2,
    rule: Literal["released", "paper"] = "released",
    uniformity: Literal["off_diagonal", "all_cells"] = "off_diagonal",
    reduction: Reduction = "mean",
) -> Loss:
    """Return AdOpt, the adaptive objective of VSE+2AD (Zhang et al. 2023, section 3.3).

    It is InfoNCE over the K hardest negatives, where K shrinks as the scores of the batch mature.

    Args:
        temperature: the divisor of the scores.
        margin: the number added to the scores of the negatives.
        rule: the rule that computes K from the scores. See ``openvse.objectives.AdaptiveTopK``.
        uniformity: the pairs over which the released rule averages. The released code uses ``all_cells``.
        reduction: the mean or the sum over the positive pairs of the batch.

    Raises:
        RecipeError: the temperature is not positive.
    """
    criterion = InfoNCE(temperature=temperature, margin=margin)
    miner = AdaptiveTopK(rule=rule, uniformity=uniformity)
    return Loss(Contrast(miner=miner, criterion=criterion, reduction=reduction))


def mil(*, margin: float = 0.1, negatives: Negatives = "all", reduction: Reduction = "mean") -> Loss:
    """Return the multiple-instance loss of PVSE (Song and Soleymani 2019, section 3.4), for K embeddings per item.

    The score of two items is the best of their K x K pairs. The violations of the margin are averaged
    over the negatives.

    Args:
        margin: the lead that a positive pair needs over a negative pair.
        negatives: ``all`` negatives, or only the ``hardest``.
        reduction: the mean or the sum over the positive pairs of the batch.
    """
    criterion = Hinge(margin=margin, reduction="mean")
    return Loss(Contrast(miner=MINERS.get(negatives)(), criterion=criterion, reduction=reduction))


def multi_view_bound(
    *, margin: float = 0.2, negatives: Negatives = "hardest", gated: bool = True, reduction: Reduction = "sum"
) -> Loss:
    """Return MV-VSE's upper bound loss, for images with K embeddings, called views (Li et al. 2022, eq. 10 to 13).

    MV-VSE trains with ``0.7 * triplet()(images, texts) + 0.3 * multi_view_bound()(images, texts)`` (eq. 15).

    Args:
        margin: the lead that a positive pair needs over a negative pair.
        negatives: the ``hardest`` under the best view, or ``all``.
        gated: whether a negative counts only if it violates the margin under the best view (L_Up), or always (L_Rough).
        reduction: the mean or the sum over the positive pairs of the batch.
    """
    criterion = Hinge(margin=margin)
    miner = MINERS.get(negatives)()
    return Loss(MultiViewBound(miner=miner, criterion=criterion, reduction=reduction, gated=gated))


def _positives(scores: Float[Tensor, "I T"], positives: Tensor | None) -> Bool[Tensor, "I T"]:
    """Return a matrix that is True where a pair is positive."""
    num_images, num_texts = scores.shape
    images = torch.arange(num_images, device=scores.device)
    if positives is None:
        if num_images != num_texts:
            raise DataError(
                f"there are {num_images} images and {num_texts} texts, so the i-th text cannot belong to the i-th "
                f"image: give positives, the image of each text (int [{num_texts}])"
            )
        positives = images
    if positives.dtype == torch.bool and positives.shape == scores.shape:
        pairs = positives.to(scores.device)
    elif positives.shape == (num_texts,) and not (positives.is_floating_point() or positives.dtype == torch.bool):
        owners = positives.to(scores.device)
        if num_texts and not 0 <= int(owners.min()) <= int(owners.max()) < num_images:
            raise DataError(
                f"positives names images {int(owners.min())} to {int(owners.max())}, but there are "
                f"images 0 to {num_images - 1}: give the row of each text's image"
            )
        pairs = images.unsqueeze(1) == owners
    else:
        raise DataError(
            f"positives is {positives.dtype} {list(positives.shape)}: give the image of each text, int [{num_texts}], "
            f"or bool [{num_images}, {num_texts}]"
        )
    if not pairs.any():
        raise DataError("no pair is positive, so there is nothing to learn: give at least one")
    return pairs
