"""Query bank normalisation in an evaluation: a bank of texts finds the hubs among images, one of images those of texts.

See ``openvse.model.hubs`` for the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.evaluation.ensemble import Member, mean_scores
from openvse.evaluation.metrics import Metrics
from openvse.evaluation.ranking import QueryRanks
from openvse.model.hubs import Attraction, BankScores

_SIDE = 1024  # of a block of scores


@dataclass(frozen=True)
class QueryBank:
    """Images and texts that show which items are hubs; none of them is in the data that are evaluated.

    Attributes:
        name: the data set and split.
        members: their embeddings by each of the models that are evaluated.
        betas: that of the images as queries, and that of the texts as queries.
        is_chosen: whether the betas were chosen on validation data.
    """

    name: str
    members: Sequence[Member]
    betas: tuple[float, float]
    is_chosen: bool = False

    def normalized(self, before: Metrics) -> Normalized:
        """Return what a report says of the bank, beside metrics without it."""
        first = self.members[0]
        return Normalized(self.name, len(first.images), len(first.texts), *self.betas, self.is_chosen, before)


@dataclass(frozen=True)
class Normalized:
    """How hubs were taken account of, and the figures without it.

    Attributes:
        bank: the data set and split of the bank.
        beta_i2t: beta of the images as queries.
        beta_t2i: beta of the texts as queries.
        is_chosen: whether these were chosen on validation data.
        before: the metrics of the scores as they are.
    """

    bank: str
    num_images: int
    num_texts: int
    beta_i2t: float
    beta_t2i: float
    is_chosen: bool
    before: Metrics

    def describe(self) -> str:
        """Return a line for a report."""
        how = "chosen on validation" if self.is_chosen else "given"
        return (
            f"hubs: query bank {self.bank} ({self.num_images:,} images, {self.num_texts:,} texts); beta {how}: "
            f"{self.beta_i2t:g} for images as queries, {self.beta_t2i:g} for texts"
        )


@dataclass(frozen=True)
class Attractions:
    """What the images and the texts of some data attract of a bank."""

    images: Attraction
    texts: Attraction

    def taken_from(self, rows: slice, columns: slice, scores: Float[Tensor, "i t"]) -> Float[Tensor, "i t"]:
        """Return a block of scores less what its items attract.

        Among the candidates of one query its own share is the same number, so one block serves both directions.
        """
        images = torch.from_numpy(self.images.amounts[rows]).to(scores)
        texts = torch.from_numpy(self.texts.amounts[columns]).to(scores)
        return scores - images.unsqueeze(1) - texts


def attractions(
    members: Sequence[Member],
    bank: Sequence[Member],
    betas: Sequence[tuple[float, float]],
    device: torch.device | str = "cpu",
) -> list[Attractions]:
    """Return what images and texts attract of a bank, for each pair of betas; memory is bounded by a block.

    Args:
        members: the embeddings of the images and the texts by each model.
        bank: those of the bank's images and texts, in the same order.
        betas: those of the images as queries, and of the texts.
        device: the device of the scores.
    """
    of_texts, of_images = zip(*betas, strict=True)
    pairs = list(zip(members, bank, strict=True))
    images = _scan([replace(own, texts=other.texts) for own, other in pairs], of_images, device)
    texts = _scan([replace(own, images=other.images) for own, other in pairs], of_texts, device, swapped=True)
    return [Attractions(images.attraction(n), texts.attraction(n)) for n in range(len(betas))]


def _scan(
    members: Sequence[Member], betas: Sequence[float], device: torch.device | str, *, swapped: bool = False
) -> BankScores:
    """Score all images with all texts; the images are the gallery, or the texts if ``swapped``."""
    num_images, num_texts = len(members[0].images), len(members[0].texts)
    sizes = (num_texts, num_images) if swapped else (num_images, num_texts)
    found = BankScores(*sizes, betas)
    for first in range(0, num_images, _SIDE):
        rows = slice(first, min(first + _SIDE, num_images))
        for start in range(0, num_texts, _SIDE):
            columns = slice(start, min(start + _SIDE, num_texts))
            scores = mean_scores(members, rows, columns, device).float().cpu().numpy()
            places = np.arange(num_images)[rows], np.arange(num_texts)[columns]
            found.see(*(places[::-1] if swapped else places), scores.T if swapped else scores)
    return found


def chosen_ranks(plain: QueryRanks, normalized: QueryRanks, use: Bool[np.ndarray, "Q"]) -> QueryRanks:
    """Return the normalised ranks of some queries, and the plain ones of the others."""
    return replace(
        plain,
        ranks=np.where(use, normalized.ranks, plain.ranks),
        tied=np.where(use, normalized.tied, plain.tied),
        places=None,
    )
