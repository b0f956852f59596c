"""Probabilities compared with what is relevant: bins, errors and precisions by hand, and the plot."""

import sys

import numpy as np
import pytest
import torch
from score_matrices import drawn, member, relevance_of

from openvse.errors import OpenVSEError
from openvse.evaluation.reliability import Reliability, ScoreCounts, fit_calibration, measure_reliability, shown_images
from openvse.evaluation.report import evaluate_sets
from openvse.scoring.calibration import Calibration, CalibrationData

LINE = Calibration(
    model="m",
    data=CalibrationData("drawn", num_images=4, num_texts=4, num_pairs=4),
    scores=(-5.0, 5.0),
    log_ratios=(-5.0, 5.0),  # a score is its own log likelihood ratio
    relevant_above=(1.0, 0.0),
)


def reliability(curve: Calibration, scores: np.ndarray, relevant: np.ndarray) -> Reliability:
    pairs = relevance_of(relevant)
    shown = shown_images(pairs, "cpu")
    for start in range(0, len(scores), 3):  # in blocks
        rows = slice(start, start + 3)
        shown.see(rows, slice(0, scores.shape[1]), torch.from_numpy(scores[rows].astype(np.float32)))
    return measure_reliability(curve, shown, pairs)


def test_bins_are_those_of_the_hits() -> None:
    scores = np.log(3 * np.array([[0.75, 0.95], [0.72, 0.15]]) / (1 - np.array([[0.75, 0.95], [0.72, 0.15]])))
    scores = np.vstack([scores, np.full((2, 2), -4.0)])  # the gallery has four images: prior odds 1 : 3
    relevant = np.array([[True, True], [False, False], [False, False], [False, False]])
    found = reliability(LINE, scores, relevant)
    assert (found.gallery, found.top, found.hits) == (4, 4, 8)
    low, third, high, last = found.bins
    assert (low.hits, third.hits, high.hits, last.hits) == (4, 1, 2, 1)
    assert (third.low, third.high) == (0.1, 0.2)
    assert high.probability == pytest.approx(0.735) and high.relevant == 0.5
    assert last.probability == pytest.approx(0.95) and last.relevant == 1.0
    wrong = 4 * low.probability + 0.15 + 2 * 0.235 + 0.05
    assert found.expected_error == pytest.approx(wrong / 8)


def test_only_the_best_images_of_a_sentence_count() -> None:
    scores, relevant = drawn(40, 2)
    found = reliability(LINE, scores, relevant)
    assert (found.gallery, found.top, found.hits) == (40, 10, 800)
    assert sum(each.hits for each in found.bins) == 800


@pytest.mark.medium
def test_a_curve_holds_on_new_data() -> None:
    scores, relevant = drawn(300, 2)
    items, pairs = member(scores), relevance_of(relevant)
    counts = ScoreCounts(items, pairs)
    evaluate_sets(items.images, items.texts, pairs, items.similarity, resamples=0, see=counts.see)
    curve = fit_calibration(counts, model="m", name="drawn/validation")
    found = reliability(curve, *drawn(250, 2, seed=1))
    assert found.expected_error < 0.02
    for each in found.precisions:
        if each.wanted <= 0.8:
            assert each.reached is not None and each.reached > each.wanted
    shares = [each.found for each in found.precisions]
    assert shares == sorted(shares, reverse=True)
    page = found.to_markdown()
    assert "fitted on drawn/validation" in page
    assert "| 0.8 to 0.9 |" in page


def test_a_precision_out_of_reach_is_said_to_be() -> None:
    found = reliability(LINE, np.full((4, 4), -4.0), np.eye(4, dtype=bool))
    last = found.precisions[-1]
    assert (last.wanted, last.reached, last.hits, last.found) == (0.95, None, 0, 0.0)
    assert "| 0.5 | " in found.to_markdown()
    weak = Calibration("m", LINE.data, scores=(0.0,), log_ratios=(0.0,), relevant_above=(1.0,))
    assert (
        "| 0.95 | out of reach | 0 |  |  |" in reliability(weak, np.zeros((4, 4)), np.eye(4, dtype=bool)).to_markdown()
    )


@pytest.mark.medium
def test_the_plot_shows_the_bins() -> None:
    scores, relevant = drawn(40, 2)
    found = reliability(LINE, scores, relevant)
    upper, lower = found.plot().axes
    points = upper.lines[1].get_xydata()
    assert points == pytest.approx(np.array([(each.probability, each.relevant) for each in found.bins]))
    assert [bar.get_height() for bar in lower.patches] == [each.hits for each in found.bins]
    assert "expected calibration error" in upper.lines[1].get_label()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reliability(LINE, *drawn(20, 1))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OpenVSEError, match="matplotlib"):
        found.plot()
