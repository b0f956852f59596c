"""Histograms of the scores of relevant and of irrelevant pairs, gathered block by block."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.evaluation.ensemble import Member
from openvse.types import Relevance

BINS = 4096
"""The number of bins between the lowest and the highest score of a relevant pair."""

FOLDS = 5
"""The number of parts of the sentences, so that a curve can be tested on what it was not fitted to."""

_PAIRS_AT_ONCE = 2048


class ScoreCounts:
    """Counts how many relevant and how many irrelevant pairs have which score.

    The scores of the relevant pairs are computed first, and set the bins: equal ones between the lowest and the
    highest, one for all scores below and one for all above. So memory does not depend on the number of pairs, and no
    range of scores has to be assumed. The captions of an image are in one fold, which depends on their scores alone, so
    the counts do not depend on the order of the items.

    Args:
        member: the embeddings and the similarity.
        relevance: the relevant pairs, at least one.
        device: the device of the scores.

    Attributes:
        relevance: the relevant pairs.
        relevant: ``int64 [FOLDS, BINS + 2]``, the number of relevant pairs in each bin.
        irrelevant: the same of the other pairs.
    """

    def __init__(self, member: Member, relevance: Relevance, device: torch.device | str = "cpu") -> None:
        self.relevance = relevance
        # Each pair once, in the order of the images.
        self._images, self._texts = np.unique(np.stack([relevance.images, relevance.texts]), axis=1)
        scores = _scores_of_pairs(member, self._images, self._texts, device)
        self._low, high = float(scores.min()), float(scores.max())
        self._per_score = BINS / max(high - self._low, 1e-6)
        self._folds = torch.from_numpy(_folds(scores, self._images, self._texts, relevance)).to(device)
        self._outer = {place: _Mean() for place in (0, BINS + 1)}
        self.relevant = np.zeros((FOLDS, BINS + 2), dtype=np.int64)
        self.irrelevant = np.zeros((FOLDS, BINS + 2), dtype=np.int64)

    def see(self, rows: slice, columns: slice, scores: Float[Tensor, "i t"]) -> None:
        """Take a block of scores; each pair belongs to exactly one block."""
        place = ((scores - self._low) * self._per_score).floor_().clamp_(-1, BINS).long() + 1
        for outer, mean in self._outer.items():
            mean.add(scores[place == outer])
        place += self._folds[columns] * (BINS + 2)
        first, last = np.searchsorted(self._images, (rows.start, rows.stop))
        texts = self._texts[first:last]
        inside = (texts >= columns.start) & (texts < columns.stop)
        row = torch.from_numpy(self._images[first:last][inside] - rows.start)
        column = torch.from_numpy(texts[inside] - columns.start)
        relevant = _count(place[row.to(place.device), column.to(place.device)])
        self.relevant += relevant
        self.irrelevant += _count(place.flatten()) - relevant

    def places(self) -> Float[np.ndarray, "bins"]:
        """Return the score that stands for each bin: its middle, or the mean score of the bins below and above."""
        middles = self._low + (np.arange(-1, BINS + 1) + 0.5) / self._per_score
        for place, mean in self._outer.items():
            if mean.count:
                middles[place] = mean.total / mean.count
        return middles


class _Mean:
    """A sum of scores, and how many they are."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, scores: Float[Tensor, "n"]) -> None:
        self.total += float(scores.double().sum())
        self.count += len(scores)


def _count(places: Int[Tensor, "n"]) -> Int[np.ndarray, "FOLDS bins"]:
    counts: Int[np.ndarray, "FOLDS bins"] = (
        torch.bincount(places, minlength=FOLDS * (BINS + 2)).view(FOLDS, BINS + 2).cpu().numpy()
    )
    return counts


def _scores_of_pairs(
    member: Member, images: Int[np.ndarray, "P"], texts: Int[np.ndarray, "P"], device: torch.device | str
) -> Float[np.ndarray, "P"]:
    """Score the relevant pairs, some at a time."""
    parts = [
        member.score_pairs(i, t, device).float().cpu()
        for i, t in zip(
            torch.split(torch.from_numpy(images), _PAIRS_AT_ONCE),
            torch.split(torch.from_numpy(texts), _PAIRS_AT_ONCE),
            strict=True,
        )
    ]
    scores: Float[np.ndarray, "P"] = torch.cat(parts).numpy()
    return scores


def _folds(
    scores: Float[np.ndarray, "P"],
    images: Int[np.ndarray, "P"],
    texts: Int[np.ndarray, "P"],
    relevance: Relevance,
) -> Int[np.ndarray, "T"]:
    """Return the fold of each text: a hash of the best score of its image, which is as good as random."""
    best = np.full(relevance.num_images, -np.inf, dtype=np.float32)
    np.maximum.at(best, images, scores)
    of_image = (best.view(np.int32).astype(np.int64) * 2654435761 >> 16) % FOLDS
    folds = np.zeros(relevance.num_texts, dtype=np.int64)
    np.maximum.at(folds, texts, of_image[images])
    return folds
