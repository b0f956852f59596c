"""Fits the curve from score to probability (``model/calibration.py``) to counted scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import DataError
from openvse.evaluation.score_counts import FOLDS, ScoreCounts
from openvse.model.calibration import Calibration, CalibrationData
from openvse.types import Relevance

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
    return Calibration(
        model=model,
        data=CalibrationData(
            name, relevance.num_images, relevance.num_texts, int(all_counts.relevant.sum()), digest
        ),
        method=method,
        log_loss=log_loss,
        scores=_plain(all_counts.scores[knots]),
        log_ratios=_plain(log_ratios),
        relevant_above=_plain(_above(all_counts.relevant)[knots]),
    )


def isotonic(counts: Counts) -> tuple[Int[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """Pool adjacent violators: the likelihood ratio is constant in runs of bins, and rises from run to run.

    A relevant pair is added to the lowest bin and an irrelevant one to the highest. So no pair is certain, and n
    relevant pairs that score above all irrelevant ones have the odds n : 1.
    """
    relevant, irrelevant = counts.relevant.copy(), counts.irrelevant.copy()
    filled = np.flatnonzero(relevant + irrelevant)
    relevant[filled[0]] += 1
    irrelevant[filled[-1]] += 1
    runs: list[tuple[int, int, float, float]] = []  # first and last bin, relevant, irrelevant
    for place, yes, no in zip(
        filled.tolist(), relevant[filled].tolist(), irrelevant[filled].tolist(), strict=True
    ):
        run = (place, place, yes, no)
        while (
            runs and run[2] * runs[-1][3] <= runs[-1][2] * run[3]
        ):  # its ratio is not above that of the run before
            before = runs.pop()
            run = (before[0], run[1], before[2] + run[2], before[3] + run[3])
        runs.append(run)
    share = np.log(relevant.sum()) - np.log(irrelevant.sum())
    knots = [(place, np.log(yes / no) - share) for first, last, yes, no in runs for place in {first, last}]
    places, log_ratios = zip(*sorted(knots), strict=True)
    return np.array(places), np.maximum.accumulate(np.array(log_ratios))


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


def _above(counted: Float[np.ndarray, "bins"]) -> Float[np.ndarray, "bins"]:
    """Return the share of the pairs in each bin and above it."""
    above: Float[np.ndarray, "bins"] = np.cumsum(counted[::-1])[::-1] / counted.sum()
    return above


def _plain(values: Float[np.ndarray, "K"]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
