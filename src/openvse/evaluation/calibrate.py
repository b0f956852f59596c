"""Counts the scores of relevant and of other pairs, and fits the curve from score to probability to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation.ensemble import Member
from openvse.scoring.calibration import Calibration, CalibrationData
from openvse.types import Relevance

BINS = 4096
"""The number of bins between the lowest and the highest score of a relevant pair."""

FOLDS = 5
"""The number of parts of the sentences, so that a curve can be tested on what it was not fitted to."""


class ScoreCounts:
    """Counts how many relevant and how many irrelevant pairs have which score.

    The scores of the relevant pairs are computed first, and set the bins: equal ones between the lowest and the
    highest, one for all scores below and one for all above. So memory does not depend on the number of pairs, and no
    range of scores has to be assumed. The captions of an image are in one fold, which depends on their scores alone, so
    the counts do not depend on the order of the items.

    Args:
        member: the embeddings and the similarity.
        relevance: the relevant pairs, at least one.

    Attributes:
        relevance: the relevant pairs.
        relevant: ``int64 [FOLDS, BINS + 2]``, the number of relevant pairs in each bin.
        irrelevant: the same of the other pairs.
    """

    def __init__(self, member: Member, relevance: Relevance, device: torch.device | str = "cpu") -> None:
        self.relevance = relevance
        # Each pair once, in the order of the images.
        self._images, self._texts = np.unique(np.stack([relevance.images, relevance.texts]), axis=1)
        pairs = torch.from_numpy(self._images), torch.from_numpy(self._texts)
        scores = member.score_pairs(*pairs, device).float().cpu().numpy()
        self._low, high = float(scores.min()), float(scores.max())
        self._per_score = BINS / max(high - self._low, 1e-6)
        self._folds = torch.from_numpy(_folds(scores, self._images, self._texts, relevance)).to(device)
        self._outer = {0: 0.0, BINS + 1: 0.0}
        self.relevant = np.zeros((FOLDS, BINS + 2), dtype=np.int64)
        self.irrelevant = np.zeros((FOLDS, BINS + 2), dtype=np.int64)

    def see(self, rows: slice, columns: slice, scores: Float[Tensor, "i t"]) -> None:
        """Take a block of scores; each pair belongs to exactly one block."""
        place = ((scores - self._low) * self._per_score).floor_().clamp_(-1, BINS).long() + 1
        for outer in self._outer:
            self._outer[outer] += float(scores[place == outer].double().sum())
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
        for place, total in self._outer.items():
            if count := (self.relevant + self.irrelevant)[:, place].sum():
                middles[place] = total / count
        return middles


def _count(places: Int[Tensor, "n"]) -> Int[np.ndarray, "FOLDS bins"]:
    counts: Int[np.ndarray, "FOLDS bins"] = (
        torch.bincount(places, minlength=FOLDS * (BINS + 2)).view(FOLDS, BINS + 2).cpu().numpy()
    )
    return counts


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


MIN_IMAGES = 20
"""The number of images with a relevant sentence below which no curve is fitted."""

_LOGISTIC_KNOTS = 128
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Counts:
    """How many pairs there are of each score.

    Attributes:
        scores: the score of each bin, ascending.
        relevant: the number of relevant pairs of each bin.
        irrelevant: the number of irrelevant pairs.
    """

    scores: Float[np.ndarray, "bins"]
    relevant: Float[np.ndarray, "bins"]
    irrelevant: Float[np.ndarray, "bins"]

    @property
    def prior(self) -> float:
        """The log odds of relevance over all pairs."""
        return float(np.log(self.relevant.sum()) - np.log(self.irrelevant.sum()))


Fit = Callable[[Counts], tuple[Int[np.ndarray, "K"], Float[np.ndarray, "K"]]]
"""A method: it returns the bins of its knots, and ``log LR`` at each of them."""


def too_small(relevance: Relevance) -> str | None:
    """Return why the data are too small for a curve, as part of a sentence; None where they are not."""
    images = len(np.unique(relevance.images))
    if images < MIN_IMAGES:
        return f"{images} images have a relevant sentence, and a curve needs {MIN_IMAGES}"
    pairs = np.unique(np.stack([relevance.images, relevance.texts]), axis=1).shape[1]
    if pairs == relevance.num_images * relevance.num_texts:
        return "every image is relevant to every sentence"
    return None


def fit_calibration(counts: ScoreCounts, *, model: str, name: str = "", digest: str = "") -> Calibration:
    """Fit a curve from score to probability by the method with the lower held-out log loss.

    Logistic regression (Platt, 1999) assumes that the log odds are linear in the score; isotonic regression
    (Zadrozny and Elkan, KDD 2002) assumes only that a higher score is never less probable. Each is fitted to four
    fifths of the sentences and tested on the rest, five times; the better one is fitted to all.

    Args:
        counts: the counted scores of all pairs.
        model: the fingerprint of the model.
        name: the data set and its split.
        digest: a hash of the data.

    Raises:
        DataError: the data are too small.
    """
    relevance = counts.relevance
    if reason := too_small(relevance):
        raise DataError(
            f"no curve from score to probability can be fitted: {reason}; give more captioned images"
        )
    all_counts = _some(counts, np.ones(FOLDS, dtype=bool))
    log_loss = {name: _held_out(fit, counts) for name, fit in METHODS.items()}
    method = min(METHODS, key=lambda name: log_loss[name])
    knots, log_ratios = METHODS[method](all_counts)
    above = np.cumsum(all_counts.relevant[::-1])[::-1] / all_counts.relevant.sum()
    return Calibration(
        model=model,
        data=CalibrationData(
            name, relevance.num_images, relevance.num_texts, int(all_counts.relevant.sum()), digest
        ),
        method=method,
        log_loss=log_loss,
        scores=_plain(all_counts.scores[knots]),
        log_ratios=_plain(log_ratios),
        relevant_above=_plain(above[knots]),
    )


def isotonic(counts: Counts) -> tuple[Int[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """Pool adjacent violators: runs of bins get one likelihood ratio each, which rises from run to run.

    The knots are the centres of the runs, weighted by their pairs (centred isotonic regression: Oron and Flournoy,
    Statistics in Biopharmaceutical Research 2017), so the curve rises between them instead of jumping; the first and
    the last bin have the ratios of their runs. A relevant pair is added to the lowest bin and an irrelevant one to the
    highest. So no pair is certain, and n relevant pairs that score above all irrelevant ones have the odds n : 1.
    """
    relevant, irrelevant = counts.relevant.copy(), counts.irrelevant.copy()
    filled = np.flatnonzero(relevant + irrelevant)
    relevant[filled[0]] += 1
    irrelevant[filled[-1]] += 1
    runs: list[tuple[float, float, float]] = []  # relevant, irrelevant, the sum of the bins of all pairs
    for place, yes, no in zip(
        filled.tolist(), relevant[filled].tolist(), irrelevant[filled].tolist(), strict=True
    ):
        run = (yes, no, place * (yes + no))
        while runs and run[0] * runs[-1][1] <= runs[-1][0] * run[1]:  # not above the ratio of the run before
            before = runs.pop()
            run = (before[0] + run[0], before[1] + run[1], before[2] + run[2])
        runs.append(run)
    share = np.log(relevant.sum()) - np.log(irrelevant.sum())
    ratios = np.maximum.accumulate([np.log(yes / no) - share for yes, no, _ in runs])
    centres = [round(total / (yes + no)) for yes, no, total in runs]
    knots = {
        int(filled[0]): ratios[0],
        **dict(zip(centres, ratios, strict=True)),
        int(filled[-1]): ratios[-1],
    }
    return np.array([*knots]), np.array([*knots.values()])


def logistic(counts: Counts) -> tuple[Int[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """Fit ``log odds = a s + b`` with a >= 0 by Newton's method, to Platt's targets, which are near 1 and near 0."""
    total = np.array([counts.relevant.sum(), counts.irrelevant.sum()])
    targets = (total[0] + 1) / (total[0] + 2), 1 / (total[1] + 2)
    weights = counts.relevant + counts.irrelevant
    wanted = counts.relevant * targets[0] + counts.irrelevant * targets[1]
    mean = np.average(counts.scores, weights=counts.relevant)
    spread = np.sqrt(np.average((counts.scores - mean) ** 2, weights=weights)) or 1.0
    slope, offset = _newton((counts.scores - mean) / spread, wanted, weights)
    places = _logistic_places(counts)
    if slope < 0:
        return places, np.zeros(len(places))
    return places, slope * (counts.scores[places] - mean) / spread + offset - counts.prior


def _logistic_places(counts: Counts) -> Int[np.ndarray, "K"]:
    """Return bins between which there are about equally many relevant pairs, with the first and the last filled one."""
    filled = np.flatnonzero(counts.relevant + counts.irrelevant)
    below = np.cumsum(counts.relevant) / counts.relevant.sum()
    spread = np.searchsorted(below, np.linspace(0, 1, _LOGISTIC_KNOTS, endpoint=False), side="right")
    return np.unique(np.clip(np.concatenate([spread, filled[[0, -1]]]), filled[0], filled[-1]))


def _newton(
    x: Float[np.ndarray, "bins"], wanted: Float[np.ndarray, "bins"], weights: Float[np.ndarray, "bins"]
) -> tuple[float, float]:
    """Maximise the likelihood of a slope and an offset; a step that would lower it is halved."""
    design = np.stack([x, np.ones_like(x)])
    values = np.array([0.0, np.log(wanted.sum()) - np.log((weights - wanted).sum())])

    def loss(values: Float[np.ndarray, "2"]) -> float:
        odds = values @ design
        return float((weights * np.logaddexp(0.0, odds) - wanted * odds).sum())

    reached = loss(values)
    for _ in range(_NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(values @ design, -500, 500)))
        gradient = design @ (weights * chance - wanted)
        curvature = (design * (weights * chance * (1 - chance))) @ design.T
        step = np.linalg.solve(curvature + 1e-9 * np.trace(curvature) * np.eye(2), gradient)
        while (after := loss(values - step)) > reached and np.abs(step).max() > 1e-9:
            step = step / 2
        if after > reached or np.abs(step).max() < 1e-9:
            break
        values, reached = values - step, after
    return float(values[0]), float(values[1])


METHODS: dict[str, Fit] = {"logistic": logistic, "isotonic": isotonic}
"""The methods that are compared; of equally good ones, the first is taken."""


def _held_out(fit: Fit, counts: ScoreCounts) -> float:
    """Return the log loss of a method, in nats per pair, on folds that it was not fitted to."""
    loss = pairs = 0.0
    for fold in range(FOLDS):
        chosen = np.arange(FOLDS) == fold
        held, rest = _some(counts, chosen), _some(counts, ~chosen)
        if not rest.relevant.sum() or not rest.irrelevant.sum():
            continue
        knots, log_ratios = fit(rest)
        odds = np.interp(held.scores, rest.scores[knots], log_ratios) + rest.prior
        loss += float(held.relevant @ np.logaddexp(0.0, -odds) + held.irrelevant @ np.logaddexp(0.0, odds))
        pairs += float((held.relevant + held.irrelevant).sum())
    return loss / max(pairs, 1.0)


def _some(counts: ScoreCounts, folds: Bool[np.ndarray, "FOLDS"]) -> Counts:
    """Return the counts of some folds."""
    return Counts(
        counts.places(),
        counts.relevant[folds].sum(axis=0).astype(np.float64),
        counts.irrelevant[folds].sum(axis=0).astype(np.float64),
    )


def _plain(values: Float[np.ndarray, "K"]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
