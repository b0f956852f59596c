"""The reliability of a model's probabilities on a data set, for the images that a search would show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation.embed import Member
from openvse.evaluation.rerank import Proposals, RelevantPairs
from openvse.output.documents import percent
from openvse.output.figures import COLUMN, QUIET, new_figure
from openvse.output.table import Table
from openvse.scoring.calibration import PRECISIONS, Calibration, CalibrationData, ShortCurve
from openvse.types import Relevance

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BINS = 4096
"""The number of bins between the lowest and the highest score of a relevant pair."""


class ScoreCounts:
    """Counts how many relevant and how many irrelevant pairs have which score: ``int64 [BINS + 2]`` each.

    The scores of the relevant pairs are computed first and set the bins: equal ones between the lowest and the highest,
    one for all scores below and one for all above. So memory does not depend on the number of pairs, and the range of
    scores may be anything.
    """

    def __init__(self, member: Member, relevance: Relevance) -> None:
        self.relevance = relevance
        # Each pair once, in the order of the images.
        self._images, self._texts = np.unique(np.stack([relevance.images, relevance.texts]), axis=1)
        pairs = torch.from_numpy(self._images), torch.from_numpy(self._texts)
        scores = member.score_pairs(*pairs).float().cpu().numpy()
        self._low, high = float(scores.min()), float(scores.max())
        self._per_score = BINS / max(high - self._low, 1e-6)
        self._outer = {0: 0.0, BINS + 1: 0.0}
        self.relevant = np.zeros(BINS + 2, dtype=np.int64)
        self.irrelevant = np.zeros(BINS + 2, dtype=np.int64)

    def see(self, rows: slice, columns: slice, scores: Float[Tensor, "i t"]) -> None:
        """Take a block of scores. Each pair belongs to exactly one block."""
        place = ((scores - self._low) * self._per_score).floor_().clamp_(-1, BINS).long() + 1
        for outer in self._outer:
            self._outer[outer] += float(scores[place == outer].cpu().double().sum())
        first, last = np.searchsorted(self._images, (rows.start, rows.stop))
        texts = self._texts[first:last]
        inside = (texts >= columns.start) & (texts < columns.stop)
        row = torch.from_numpy(self._images[first:last][inside] - rows.start)
        column = torch.from_numpy(texts[inside] - columns.start)
        relevant = _count(place[row.to(place.device), column.to(place.device)])
        self.relevant += relevant
        self.irrelevant += _count(place.flatten()) - relevant

    def places(self) -> Float[np.ndarray, "bins"]:
        """Return the score that represents each bin: its middle, or the mean score of the bins below and above."""
        middles = self._low + (np.arange(-1, BINS + 1) + 0.5) / self._per_score
        for place, total in self._outer.items():
            if count := (self.relevant + self.irrelevant)[place]:
                middles[place] = total / count
        return middles


def _count(places: Int[Tensor, "n"]) -> Int[np.ndarray, "bins"]:
    counts: Int[np.ndarray, "bins"] = torch.bincount(places, minlength=BINS + 2).cpu().numpy()
    return counts


MIN_IMAGES = 20
"""The number of images with a relevant sentence below which no curve is fitted."""


def too_small(relevance: Relevance) -> str | None:
    """Return the reason why the data are too small for a curve, as part of a sentence, or None."""
    images = len(np.unique(relevance.images))
    if images < MIN_IMAGES:
        return f"{images} images have a relevant sentence, and a curve needs {MIN_IMAGES}"
    pairs = np.unique(np.stack([relevance.images, relevance.texts]), axis=1).shape[1]
    if pairs == relevance.num_images * relevance.num_texts:
        return "every image is relevant to every sentence"
    return None


def fit_calibration(counts: ScoreCounts, *, model: str, name: str = "", digest: str = "") -> Calibration:
    """Fit a curve from score to probability by isotonic regression (Zadrozny and Elkan, KDD 2002).

    It assumes only that a higher score is never less probable.

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
        raise DataError(f"no curve from score to probability can be fitted, as {reason}: give more captioned images")
    knots, log_ratios = isotonic(counts.relevant.astype(np.float64), counts.irrelevant.astype(np.float64))
    pairs = int(counts.relevant.sum())
    return Calibration(
        model=model,
        data=CalibrationData(name, relevance.num_images, relevance.num_texts, pairs, digest),
        scores=tuple(counts.places()[knots].tolist()),
        log_ratios=tuple(log_ratios.tolist()),
        relevant_above=tuple((np.cumsum(counts.relevant[::-1])[::-1][knots] / pairs).tolist()),
    )


SHORT, MIN_SHORT = 200, 20
"""The most queries of one word, and of two, on which their curve is fitted, and the fewest."""


def fit_short(scores: Float[np.ndarray, "q i"], *groups: Bool[np.ndarray, "q i"]) -> ShortCurve:
    """Fit the curve of short queries to their deviations from their means, by relevant and irrelevant images."""
    deviations = (scores - scores.mean(1, keepdims=True)) / np.maximum(scores.std(1, keepdims=True), 1e-6)
    low, bins = float(deviations.min()), 512
    width = max(float(deviations.max()) - low, 1e-6) / bins
    place = np.minimum((deviations - low) / width, bins - 1).astype(np.int64)
    counts = [np.bincount(place[chosen], minlength=bins).astype(float) for chosen in groups]
    knots, log_ratios = isotonic(*counts)
    return ShortCurve(len(scores), tuple((low + (knots + 0.5) * width).tolist()), tuple(log_ratios.tolist()))


def isotonic(
    relevant: Float[np.ndarray, "bins"], irrelevant: Float[np.ndarray, "bins"]
) -> tuple[Int[np.ndarray, "K"], Float[np.ndarray, "K"]]:
    """Return the bins of the knots, and ``log LR`` at each, from the numbers of pairs in each bin.

    Adjacent violators are pooled: runs of bins get one likelihood ratio each, which rises from run to run.

    The knots are the centres of the runs, weighted by their pairs (centred isotonic regression: Oron and Flournoy,
    Statistics in Biopharmaceutical Research 2017), so the curve rises between them instead of jumping. The first and
    the last bin have the ratios of their runs. A relevant pair is added to the lowest bin and an irrelevant one to the
    highest. So no pair is certain, and n relevant pairs that score above all irrelevant ones have the odds n : 1.
    """
    relevant, irrelevant = relevant.copy(), irrelevant.copy()
    filled = np.flatnonzero(relevant + irrelevant)
    relevant[filled[0]] += 1
    irrelevant[filled[-1]] += 1
    runs: list[tuple[float, float, float]] = []  # relevant, irrelevant, the sum of the bins of all pairs
    for place, yes, no in zip(filled.tolist(), relevant[filled].tolist(), irrelevant[filled].tolist(), strict=True):
        run = (yes, no, place * (yes + no))
        while runs and run[0] * runs[-1][1] <= runs[-1][0] * run[1]:  # not above the ratio of the run before
            before = runs.pop()
            run = (before[0] + run[0], before[1] + run[1], before[2] + run[2])
        runs.append(run)
    share = np.log(relevant.sum()) - np.log(irrelevant.sum())
    ratios = np.maximum.accumulate([np.log(yes / no) - share for yes, no, _ in runs])
    centres = [round(total / (yes + no)) for yes, no, total in runs]
    knots = {int(filled[0]): ratios[0], **dict(zip(centres, ratios, strict=True)), int(filled[-1]): ratios[-1]}
    return np.array([*knots]), np.array([*knots.values()])


TOP = 10
"""The number of images of each sentence that count as shown."""

_BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """The hits (at least one) whose probability is in one range, their mean, and the share of them that is relevant."""

    low: float
    high: float
    hits: int
    probability: float
    relevant: float


@dataclass(frozen=True)
class PrecisionReached:
    """The hits that remain under a wanted precision.

    Attributes:
        score: the lowest score from which on every image has at least this probability, or None if there is none.
        reached: the share of relevant ones among them, or None if there are none.
        found: the share of all relevant pairs that is among them.
    """

    wanted: float
    score: float | None
    hits: int
    reached: float | None
    found: float


@dataclass(frozen=True)
class Reliability:
    """Probabilities compared with relevance, over the best images of every sentence.

    Attributes:
        gallery: the number of images that every sentence was compared with.
        expected_error: the expected calibration error: the mean over the hits of the difference between the mean
            probability and the share of relevant hits of their bin (Naeini et al., AAAI 2015), ten bins of equal width.
    """

    fitted_on: str
    gallery: int
    top: int
    hits: int
    expected_error: float
    bins: tuple[ReliabilityBin, ...]
    precisions: tuple[PrecisionReached, ...]

    def to_markdown(self) -> str:
        """Return a section for a report: the expected calibration error and two tables."""
        hits = [
            [f"{each.low:.1f} to {each.high:.1f}", f"{each.hits:,}", percent(each.probability), percent(each.relevant)]
            for each in self.bins
        ]
        return "\n\n".join(
            [
                "## Probabilities",
                f"Expected calibration error {100 * self.expected_error:.1f} %, over the {self.top} best images of "
                f"each sentence among {self.gallery:,}. The curve was fitted on {self.fitted_on}.",
                Table(["probability", "hits", "mean probability", "relevant"], hits).to_markdown(),
                Table(
                    ["wanted precision", "score from", "hits", "reached", "relevant pairs found"],
                    [*self._precision_rows()],
                ).to_markdown(),
            ]
        )

    def plot(self) -> Figure:
        """Draw the share of relevant hits over the probability, and below it how many hits there are."""
        figure = new_figure(COLUMN, 4.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=0.9, label="as it should be")
        upper.plot(
            [each.probability for each in self.bins],
            [each.relevant for each in self.bins],
            marker="o",
            label=f"expected calibration error {100 * self.expected_error:.1f} %",
        )
        upper.set(ylabel="share of relevant hits", xlim=(0, 1), ylim=(0, 1))
        upper.legend(loc="upper left")
        lower.bar(
            [each.low for each in self.bins],
            [each.hits for each in self.bins],
            width=1 / _BINS,
            align="edge",
            edgecolor="white",
        )
        lower.set(xlabel="probability", ylabel="hits", yscale="log")
        return figure

    def _precision_rows(self) -> Iterator[list[str]]:
        for each in self.precisions:
            score = "out of reach" if each.score is None else f"{each.score:.4f}"
            reached = "" if each.reached is None else percent(each.reached)
            found = "" if each.score is None else percent(each.found)
            yield [f"{each.wanted:g}", score, f"{each.hits:,}", reached, found]


def measure_reliability(calibration: Calibration, proposals: Proposals, relevance: Relevance) -> Reliability:
    """Compare the probabilities of the best images of every sentence with the relevant pairs.

    Args:
        calibration: the curve of the model that proposed them.
        proposals: the best images of every sentence.
        relevance: the relevant pairs.
    """
    gallery, best = relevance.num_images, proposals.t2i
    scores: Float[np.ndarray, "T top"] = best.scores.cpu().double().numpy()
    relevant = RelevantPairs(relevance)(*proposals.of_texts()).cpu().numpy()
    bins = tuple(_bins(calibration.probabilities(scores, gallery), relevant))
    return Reliability(
        fitted_on=calibration.data.name,
        gallery=gallery,
        top=scores.shape[1],
        hits=scores.size,
        expected_error=sum(each.hits * abs(each.probability - each.relevant) for each in bins) / scores.size,
        bins=bins,
        precisions=tuple(_reached(calibration, wanted, scores, relevant, relevance) for wanted in PRECISIONS),
    )


def shown_images(relevance: Relevance, device: torch.device | str) -> Proposals:
    """Return an object that gathers the best images of every sentence from blocks of scores on a device."""
    return Proposals(*relevance.shape, TOP, device)


def _bins(probabilities: Float[np.ndarray, "T top"], relevant: Bool[np.ndarray, "T top"]) -> Iterator[ReliabilityBin]:
    place = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
    for number in range(_BINS):
        inside = place == number
        if inside.any():
            yield ReliabilityBin(
                number / _BINS,
                (number + 1) / _BINS,
                int(inside.sum()),
                float(probabilities[inside].mean()),
                float(relevant[inside].mean()),
            )


def _reached(
    calibration: Calibration,
    wanted: float,
    scores: Float[np.ndarray, "T top"],
    relevant: Bool[np.ndarray, "T top"],
    relevance: Relevance,
) -> PrecisionReached:
    if (threshold := calibration.threshold(wanted, relevance.num_images)) is None:
        return PrecisionReached(wanted, None, 0, None, 0.0)
    above = scores >= threshold
    return PrecisionReached(
        wanted,
        threshold,
        int(above.sum()),
        float(relevant[above].mean()) if above.any() else None,
        float((above & relevant).sum() / len(relevance.images)),
    )
