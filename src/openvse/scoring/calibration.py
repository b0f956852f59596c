"""The curve from a score to the probability that the image is relevant to the sentence, kept in the model folder.

A score alone gives the likelihood ratio of a pair, ``LR(s) = p(s | relevant) / p(s | irrelevant)``. The probability of
relevance follows from this and from how rare relevant images are, by Bayes' rule in odds:

    P(relevant | s) / P(irrelevant | s)  =  LR(s) * m / (N - m)

N is the number of searched images and m the expected number of relevant images for a sentence. Only LR is learned
(``evaluation/calibrate.py``). N and m come from the search.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError, ModelError, check_number
from openvse.files import parse_json, read_text

CALIBRATION = "calibration.json"
FORMAT = "openvse-calibration"
VERSION = 1
PART = "1 of 2"
"""The curve of images that are known to have one of two words, which raises their scores already."""
PRECISIONS = (0.2, 0.5, 0.8, 0.9, 0.95)
"""The precisions whose thresholds the file lists and ``openvse evaluate --calibrate`` shows."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CalibrationData:
    """The data on which a curve was fitted.

    Attributes:
        name: the data set and its split.
        digest: a hash of the names of the images, the sentences and the relevant pairs. Empty where there are no names.
    """

    name: str
    num_images: int
    num_texts: int
    num_pairs: int
    digest: str = ""


@dataclass(frozen=True)
class ShortCurve:
    """The curve of queries of one or of two words, whose scores differ from the scores of sentences.

    Its knots are deviations: how many standard deviations a score lies above the mean of all images.
    """

    num_queries: int
    deviations: tuple[float, ...]
    log_ratios: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """A curve from score to probability, linear in log odds between its knots, and constant beyond them.

    The probabilities answer sentences: m is the number of relevant images for each of them. They are averages over
    sentences, and the pairs of the data define relevance.

    Attributes:
        model: the fingerprint of the model that computes the scores.
        data: the data on which the curve was fitted.
        scores: the K knots, ascending.
        log_ratios: ``log LR`` at each knot, which never falls.
        relevant_above: the share of the relevant pairs that score at least the knot.
        short: the curves of queries of one and of two words (``"1"``, ``"2"``, ``PART``), as far as there were enough.
        said: how often one caption of an image has a word that its captions have.

    Raises:
        DataError: the lists are not of one length, not ordered as stated, or not finite.
    """

    model: str
    data: CalibrationData
    scores: tuple[float, ...]
    log_ratios: tuple[float, ...]
    relevant_above: tuple[float, ...]
    short: Mapping[str, ShortCurve] = field(default_factory=dict)
    said: float = 1.0

    def __post_init__(self) -> None:
        lists = [self.scores, self.log_ratios, self.relevant_above]
        if not self.scores or len({len(each) for each in lists}) > 1 or not np.isfinite(lists).all():
            raise DataError("the knots of a curve must be lists of one length above 0, of finite numbers")
        if any((np.diff(each) < 0).any() for each in lists[:2]):
            raise DataError("the knots of a curve must be ascending scores, whose log ratios never fall")
        if (np.diff(self.relevant_above) > 0).any() or self.relevant_above[0] > 1 or self.relevant_above[-1] < 0:
            raise DataError("the shares above the knots of a curve must never rise, and be within 0 and 1")
        sizes = self.data
        if min(sizes.num_images, sizes.num_texts, sizes.num_pairs) < 1:
            raise DataError("a curve must be fitted on at least one image, sentence and pair")

    def of_short(self, kind: str, mean: float, spread: float) -> Calibration | None:
        """Return a curve of short queries, by mean and standard deviation of a query's scores, or None."""
        if (curve := self.short.get(kind)) is None:
            return None
        scores = tuple(mean + max(spread, 1e-6) * each for each in curve.deviations)
        return replace(self, scores=scores, log_ratios=curve.log_ratios, relevant_above=(0.0,) * len(scores), short={})

    def moved(self, odds: float) -> Calibration:
        """Return the curve with all log odds moved by a number. See ``moved_by``."""

        def by(ratios: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(each + odds for each in ratios)

        short = {kind: replace(each, log_ratios=by(each.log_ratios)) for kind, each in self.short.items()}
        return replace(self, log_ratios=by(self.log_ratios), short=short)

    @property
    def expected(self) -> float:
        """The mean number of relevant images of a sentence in the data of the curve."""
        return self.data.num_pairs / self.data.num_texts

    def probabilities(
        self, scores: Float[np.ndarray, "*b"], gallery: int | None = None, expected: float | None = None
    ) -> Float[np.ndarray, "*b"]:
        """Return the probability of relevance of each score.

        Args:
            scores: the model's scores of images and a sentence.
            gallery: N, the number of searched images, by default the number in the curve's data.
            expected: m, the expected number of relevant images, by default the number in the curve's data. More than
                half of the images counts as half.
        """
        log_odds = np.interp(scores, self._knots[0], self._knots[1]) + self._prior(gallery, expected)
        return np.asarray(_sigmoid(log_odds))

    def threshold(self, precision: float, gallery: int | None = None, expected: float | None = None) -> float | None:
        """Return the lowest score with at least a certain probability. None if no score has it.

        Every image from this score on has at least this probability, so at least this share of any selection of them is
        expected to be relevant, for any sentence.
        """
        check_number("precision", precision, 0, 1, above=True)
        knots, ratios = self._knots
        wanted = math.inf if precision == 1 else math.log(precision) - math.log1p(-precision)
        wanted -= self._prior(gallery, expected)
        if (place := int(np.searchsorted(ratios, wanted))) == len(knots):
            return None
        if place == 0:
            return float(knots[0])
        share = (wanted - ratios[place - 1]) / (ratios[place] - ratios[place - 1])
        return float(knots[place - 1] + share * (knots[place] - knots[place - 1]))

    def highest(self, gallery: int | None = None, expected: float | None = None) -> float:
        """Return the probability of the best possible score. See ``probabilities`` for the arguments."""
        return float(self.probabilities(self._knots[0][-1:], gallery, expected)[0])

    def recall(self, score: float) -> float:
        """Return the recall of a threshold: the share of the relevant pairs that score at least as much."""
        return float(np.interp(score, self._knots[0], self.relevant_above, right=0.0))

    @cached_property
    def _knots(self) -> tuple[Float[np.ndarray, "K"], Float[np.ndarray, "K"]]:
        return np.array(self.scores, dtype=np.float64), np.array(self.log_ratios, dtype=np.float64)

    def _prior(self, gallery: int | None, expected: float | None) -> float:
        """Return the prior log odds of relevance, without a score."""
        count = self.data.num_images if gallery is None else gallery
        relevant = self.expected if expected is None else expected
        if count < 1 or not (relevant > 0 and math.isfinite(relevant)):
            raise DataError(
                f"{count} images are searched and {relevant} expected to be relevant: give 1 or more images, and a "
                f"number above 0"
            )
        return math.log(relevant) - math.log(max(count - relevant, relevant))

    def to_json(self) -> str:
        """Return the curve as indented JSON, with the thresholds of some precisions for its own number of images."""
        thresholds = {str(wanted): self.threshold(wanted) for wanted in PRECISIONS}
        content = {"format": FORMAT, "version": VERSION, **asdict(self), "thresholds": thresholds}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Return the curve of ``to_json``. Raise ModelError if a newer openvse wrote it, or it is damaged."""
        try:
            fields: dict[str, Any] = parse_json(text)
            kind = fields.pop("format"), fields.pop("version")
            if kind == (FORMAT, VERSION):
                fields.pop("thresholds", None)
                fields["data"] = CalibrationData(**fields["data"])
                short = fields.pop("short", {}).items()
                fields["short"] = {
                    key: ShortCurve(each["num_queries"], tuple(each["deviations"]), tuple(each["log_ratios"]))
                    for key, each in short
                }
                lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
                return cls(**{**fields, **lists})
        except (ValueError, KeyError, TypeError, AttributeError, DataError) as error:
            raise ModelError(f"the curve is damaged ({error}): run 'openvse evaluate --calibrate' again") from error
        raise ModelError(
            f"the curve has format {kind[0]} {kind[1]}, but this openvse reads {FORMAT} {VERSION}: update openvse, or "
            f"run 'openvse evaluate --calibrate' again"
        )


def read_calibration(folder: Path) -> Calibration | None:
    """Return the curve of a model folder, or None, with a warning if it cannot be used."""
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    try:
        return Calibration.from_json(read_text(path))
    except (ModelError, OSError, UnicodeError) as error:
        _logger.warning("%s is not used: %s", path, error)
        return None


def moved_by(judged: Float[np.ndarray, "n 2"]) -> float:
    """Return by how much to move the log odds of a curve, given what it stated of judged hits, and whether each fits.

    The result is the most probable number a, given a normal distribution around 0 with variance 1:
    ``sum (fits - sigmoid(log odds + a)) = a``. So few judgements move little. They need no sample of all hits if their
    scores decide which are judged.
    """
    stated, fits = judged.T.clip(1e-6, 1 - 1e-6)
    log_odds, low, high = np.log(stated / (1 - stated)), -50.0, 50.0
    while high - low > 1e-6:  # the difference of both sides falls with a
        middle = (low + high) / 2
        is_low = float((fits - _sigmoid(log_odds + middle)).sum()) > middle
        low, high = (middle, high) if is_low else (low, middle)
    return round(low, 5) + 0.0


def _sigmoid(log_odds: Any) -> Any:
    """Return the probability of log odds without overflow."""
    small = np.exp(-np.abs(log_odds))
    return np.where(log_odds >= 0, 1.0, small) / (1.0 + small)
