"""The reliability of a model's probabilities on a data set, for the images that a search would show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float

from openvse.evaluation.rerank import Proposals, RelevantPairs
from openvse.output.documents import percent
from openvse.output.figures import COLUMN, QUIET, new_figure
from openvse.output.table import Table
from openvse.scoring.calibration import PRECISIONS, Calibration
from openvse.types import Relevance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
