"""Query bank normalisation in an evaluation: a bank of texts finds the hubs among images, one of images those of texts.

See ``openvse.scoring.hubs`` for the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from openvse.evaluation.ensemble import Member, mean_scores
from openvse.evaluation.metrics import Metrics
from openvse.scoring.hubs import Attraction, measure_attraction

Attractions = tuple[Attraction, Attraction]
"""What the images and what the texts of some data attract of a bank."""


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


@dataclass(frozen=True)
class Normalized:
    """What a report says of a query bank, and the metrics without it (``before``)."""

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


def attractions(
    members: Sequence[Member],
    bank: Sequence[Member],
    betas: Sequence[tuple[float, float]],
) -> list[Attractions]:
    """Return what images and texts attract of a bank, for each two betas (of images and of texts as queries)."""
    of_texts, of_images = zip(*betas, strict=True)
    pairs = list(zip(members, bank, strict=True))
    images = _attracted([replace(own, texts=other.texts) for own, other in pairs], of_images)
    texts = _attracted([replace(own, images=other.images) for own, other in pairs], of_texts, swapped=True)
    return list(zip(images, texts, strict=True))


def _attracted(
    members: Sequence[Member], betas: Sequence[float], *, swapped: bool = False
) -> list[Attraction]:
    """Return what the images attract of the texts, or, if ``swapped``, the texts of the images, for each beta."""
    num_items, num_queries = len(members[0].images), len(members[0].texts)
    if swapped:
        num_items, num_queries = num_queries, num_items

    def score(items: slice, queries: slice) -> Float[np.ndarray, "i q"]:
        rows, columns = (queries, items) if swapped else (items, queries)
        scores = mean_scores(members, rows, columns).float().cpu().numpy()
        return scores.T if swapped else scores

    amounts, _, best = measure_attraction(score, num_items, num_queries, betas)
    is_best = np.isin(np.arange(num_items), best)
    return [Attraction(each, is_best) for each in amounts]
