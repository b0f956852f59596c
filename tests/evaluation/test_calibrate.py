"""The curve from score to probability: known truths are found, and whatever the scores are, it keeps its rules."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from score_matrices import counted, drawn, member, relevance_of

from openvse.errors import DataError
from openvse.evaluation.reliability import ScoreCounts, fit_calibration, fit_short, isotonic
from openvse.evaluation.report import evaluate_sets
from openvse.scoring.calibration import Calibration, CalibrationData

DISTANCE = 3.0


def fitted(scores: np.ndarray, relevant: np.ndarray) -> Calibration:
    return fit_calibration(counted(scores, relevant), model="m", name="drawn")


def truth(scores: np.ndarray, gallery: int) -> np.ndarray:
    odds = np.exp(DISTANCE * scores - DISTANCE**2 / 2) / (gallery - 1)
    return odds / (1 + odds)


def test_the_true_probabilities_are_found_and_hold_for_another_gallery() -> None:
    curve = fitted(*drawn(300, 2))
    scores = np.linspace(0.5, 3.5, 7)  # where both kinds of pairs are
    for gallery in (300, 30, 3000):
        assert curve.probabilities(scores, gallery) == pytest.approx(truth(scores, gallery), abs=0.07)
    assert curve.probabilities(scores) == pytest.approx(curve.probabilities(scores, 300))


@pytest.mark.medium
def test_new_data_of_another_size_are_as_often_relevant_as_it_says() -> None:
    curve = fitted(*drawn(300, 2))
    scores, relevant = drawn(800, 1, seed=1)
    probable = curve.probabilities(scores, gallery=800)
    for low, high in ((0.05, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)):
        inside = (probable >= low) & (probable < high)
        assert inside.sum() > 40
        assert relevant[inside].mean() == pytest.approx(probable[inside].mean(), abs=0.1)


@pytest.mark.medium
def test_thresholds_reach_the_wanted_precision_on_new_data() -> None:
    curve = fitted(*drawn(300, 2))
    scores, relevant = drawn(800, 1, seed=1)
    for wanted in (0.5, 0.8, 0.9):
        threshold = curve.threshold(wanted, gallery=800)
        assert threshold is not None
        above = scores >= threshold
        assert relevant[above].mean() > wanted
        near = (scores >= threshold - 0.1) & (scores < threshold + 0.1)  # and not by being too high
        assert relevant[near].mean() == pytest.approx(wanted, abs=0.15)
        assert curve.recall(threshold) == pytest.approx((above & relevant).sum() / relevant.sum(), abs=0.05)


@pytest.mark.medium
@given(
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([1, 2, 5, 0]),
    distance=st.sampled_from([-2.0, 0.0, 1.0, 8.0, 100.0]),
    captions=st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
def test_whatever_the_scores_it_rises_and_stays_between_0_and_1(
    seed: int, levels: int, distance: float, captions: int
) -> None:
    scores, relevant = drawn(24, captions, seed, distance)
    if levels:  # ties
        scores = np.round(scores / 100 * levels)
    curve = fitted(scores, relevant)
    asked = np.linspace(scores.min() - 10, scores.max() + 10, 200)
    for gallery in (1, 2, 24, 10**9):
        probable = curve.probabilities(asked, gallery)
        assert (np.diff(probable) >= 0).all() and probable.min() > 0 and probable.max() < 1
    assert (curve.probabilities(asked, 1000) <= curve.probabilities(asked, 100)).all()
    assert (curve.probabilities(asked, 1000, 5.0) >= curve.probabilities(asked, 1000, 1.0)).all()
    assert Calibration.from_json(curve.to_json()) == curve


def test_the_order_of_the_items_does_not_matter() -> None:
    scores, relevant = drawn(60, 2)
    generator = np.random.default_rng(3)
    rows, columns = generator.permutation(60), generator.permutation(120)
    one, other = fitted(scores, relevant), fitted(scores[rows][:, columns], relevant[rows][:, columns])
    assert one.scores == pytest.approx(other.scores) and one.log_ratios == pytest.approx(other.log_ratios)


@pytest.mark.parametrize("distance", [0.0, -3.0])
def test_scores_that_tell_nothing_leave_what_was_known_before(distance: float) -> None:
    scores, relevant = drawn(100, 1, distance=distance)
    curve = fitted(scores if distance else np.zeros_like(scores), relevant)
    assert curve.probabilities(np.array([-2.0, 0.0, 1.0])) == pytest.approx(0.01, rel=0.25)


def test_a_pair_is_never_certain() -> None:
    curve = fitted(*drawn(100, 1, distance=100.0))
    best = curve.highest()
    assert 0.9 < best < 1
    assert curve.highest(gallery=100_000) < 0.5 < best


def test_counts_do_not_depend_on_the_blocks() -> None:
    scores, relevant = drawn(50, 3)
    one, other = counted(scores, relevant, block=7), counted(scores, relevant, block=1000)
    assert (one.relevant == other.relevant).all() and (one.irrelevant == other.irrelevant).all()
    assert one.relevant.sum() == 150 and one.irrelevant.sum() == 50 * 150 - 150
    assert one.places() == pytest.approx(other.places())
    assert (np.diff(one.places()) > 0).all()


def test_the_evaluation_shows_every_pair_once() -> None:
    scores, relevant = drawn(50, 3)
    alone, pairs = counted(scores, relevant), relevance_of(relevant)
    items = member(scores)
    seen = ScoreCounts(items, pairs)
    evaluate_sets(items.images, items.texts, pairs, items.similarity, resamples=0, block_size=16, see=seen.see)
    assert (seen.relevant == alone.relevant).all() and (seen.irrelevant == alone.irrelevant).all()


def test_texts_of_several_images_and_pairs_that_are_named_twice_count_once() -> None:
    scores, relevant = drawn(30, 1)
    relevant[:, 0] = True
    once = fitted(scores, relevant)
    images, texts = np.nonzero(relevant)
    pairs = relevance_of(relevant)
    twice = type(pairs)(np.tile(images, 2), np.tile(texts, 2), *relevant.shape)
    counts = ScoreCounts(member(scores), twice)
    counts.see(slice(0, 30), slice(0, 30), torch.from_numpy(scores.astype(np.float32)))
    assert fit_calibration(counts, model="m", name="drawn") == once
    assert once.expected == pytest.approx(59 / 30)


def test_pooling_is_the_isotonic_regression() -> None:
    """Compare with the min-max formula: the regression is max over starts of the min over ends of the mean.

    The curve has the value of a run at its centre, and rises from centre to centre.
    """
    generator = np.random.default_rng(0)
    for _ in range(20):
        relevant, irrelevant = generator.integers(0, 4, (2, 12)).astype(float)
        relevant[3], irrelevant[5] = 1, 1
        knots, ratios = isotonic(relevant, irrelevant)
        filled = np.flatnonzero(relevant + irrelevant)
        relevant[filled[0]] += 1
        irrelevant[filled[-1]] += 1
        share = relevant.sum() / irrelevant.sum()
        total = relevant + irrelevant
        wanted = {
            place: max(
                min(relevant[i : j + 1].sum() / total[i : j + 1].sum() for j in filled if j >= place)
                for i in filled
                if i <= place
            )
            for place in filled
        }
        runs: dict[float, list[int]] = {}
        for place in filled.tolist():
            runs.setdefault(round(wanted[place], 9), []).append(place)
        centres = [round(float(np.average(run, weights=total[run]))) for run in runs.values()]
        assert set(knots.tolist()) == {*centres, filled[0], filled[-1]} and (np.diff(knots) > 0).all()
        odds = share * np.exp(np.interp(centres, knots, ratios))
        assert odds / (1 + odds) == pytest.approx(np.array([*runs]), abs=1e-6)
        inner = (knots >= centres[0]) & (knots <= centres[-1])
        assert (np.diff(ratios[inner]) > 0).all()  # no step


@pytest.mark.parametrize(
    ("relevant", "reason"), [(np.eye(19, dtype=bool), "19.*20"), (np.ones((25, 2), dtype=bool), "")]
)
def test_data_that_are_too_small_are_refused(relevant: np.ndarray, reason: str) -> None:
    with pytest.raises(DataError, match=reason or None):
        fitted(np.zeros(relevant.shape), relevant)


DATA = CalibrationData("some", 10, 50, 50)


def test_a_curve_holds_for_queries_whose_scores_lie_anywhere() -> None:
    rng = np.random.default_rng(0)
    relevant = rng.random((200, 400)) < 0.08
    some = relevant | (rng.random(relevant.shape) < 0.2)  # as images with one of two words, whose scores are higher
    drawn = rng.normal(size=relevant.shape) + relevant + some
    scores = (rng.normal(size=(200, 1)) + np.exp(rng.normal(size=(200, 1))) * drawn).astype(np.float64)
    for among in (np.ones_like(some), some):
        curve = fit_short(scores[:100], relevant[:100], (among & ~relevant)[:100])
        assert curve.num_queries == 100
        known, seen = [], []
        for row, right, drawn_from in zip(scores[100:], relevant[100:], among[100:], strict=True):
            whole = Calibration("m", DATA, (0.0,), (0.0,), (1.0,), {"1": curve})
            of_one = whole.of_short("1", float(row.mean()), float(row.std()))
            assert of_one is not None and whole.of_short("2", 0.0, 1.0) is None
            known.append(of_one.probabilities(row[drawn_from], int(drawn_from.sum()), float(right.sum())))
            seen.append(right[drawn_from])
        values, right = np.concatenate(known), np.concatenate(seen)
        for least, most in ((0.0, 0.1), (0.1, 0.5), (0.5, 1.0)):
            within = (values >= least) & (values < most)
            assert not within.any() or abs(values[within].mean() - right[within].mean()) < 0.08
        assert abs(values.mean() - right.mean()) < 0.02
        assert Calibration.from_json(whole.to_json()) == whole
