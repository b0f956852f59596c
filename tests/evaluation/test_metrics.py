import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openvse.errors import DataError
from openvse.evaluation.metrics import (
    bootstrap_replicates,
    chance_metrics,
    grouped_intervals,
    mean_metrics,
    percentile_intervals,
    retrieval_metrics,
)
from openvse.evaluation.ranking import QueryRanks, Ranks, rank_by_counting
from openvse.types import Relevance

CAPTIONS = Relevance(np.arange(60) // 3, np.arange(60), 20, 60)


def ranked(relevance: Relevance, seed: int = 0, signal: float = 2.0) -> Ranks:
    """Return ranks of random scores in which relevant pairs stand out."""
    scores = torch.randn(relevance.num_images, relevance.num_texts, generator=torch.Generator().manual_seed(seed))
    scores[relevance.images, relevance.texts] += signal
    return rank_by_counting(lambda rows, columns: scores[rows, columns], relevance)


def test_closed_forms() -> None:
    one = QueryRanks(np.arange(4), np.array([1, 2, 5, 11]), np.zeros(4, dtype=bool), 4, 100)
    metrics = retrieval_metrics(Ranks(one, one))
    assert [metrics[f"t2i_r{k}"] for k in (1, 5, 10)] == [25.0, 75.0, 75.0]
    assert [metrics[f"i2t_{name}"] for name in ("medr", "meanr", "nmr")] == [3.5, 4.75, 0.035]


def test_names_and_sum() -> None:
    ranks = ranked(CAPTIONS)
    metrics = retrieval_metrics(ranks)
    recalls = [f"{side}_r{k}" for side in ("i2t", "t2i") for k in (1, 5, 10)]
    others = [f"{side}_{name}" for side in ("i2t", "t2i") for name in ("medr", "meanr", "nmr")]
    assert list(metrics) == [*recalls, "rsum", *others]
    assert metrics["rsum"] == pytest.approx(sum(metrics[name] for name in recalls))
    assert metrics["i2t_nmr"] == metrics["i2t_medr"] / 60
    assert metrics["t2i_nmr"] == metrics["t2i_medr"] / 20


@pytest.mark.parametrize("relevant", [{0}, {0, 1}, {0, 1, 2, 3}])
def test_chance_equals_all_orders_of_four(relevant: set[int]) -> None:
    pairs = np.array(sorted(relevant))
    chance = chance_metrics(Relevance(np.zeros_like(pairs), pairs, 1, 4))
    firsts = [min(order.index(item) for item in relevant) + 1 for order in permutations(range(4))]
    assert chance["i2t_r1"] == pytest.approx(100 * np.mean(np.array(firsts) <= 1))
    assert chance["i2t_r5"] == 100.0
    assert chance["i2t_meanr"] == pytest.approx(np.mean(firsts))


@pytest.mark.medium
@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_chance_is_hypergeometric(candidates: int, data: st.DataObject) -> None:
    relevant = data.draw(st.integers(1, candidates))
    pairs = np.arange(relevant)
    chance = chance_metrics(Relevance(np.zeros_like(pairs), pairs, 1, candidates))
    for k in (1, 5, 10):
        k_here = min(k, candidates)
        misses = math.comb(candidates - relevant, k_here) / math.comb(candidates, k_here)
        assert chance[f"i2t_r{k}"] == pytest.approx(100 * (1 - misses))


def test_repeated_pairs_do_not_change_chance() -> None:
    twice = Relevance(np.repeat(CAPTIONS.images, 2), np.repeat(CAPTIONS.texts, 2), 20, 60)
    assert chance_metrics(twice) == chance_metrics(CAPTIONS)


def test_bootstrap_equals_a_loop_over_resamples() -> None:
    """The same draws, with every drawn image and its captions really repeated."""
    ranks = ranked(CAPTIONS)
    found = bootstrap_replicates(ranks, CAPTIONS, resamples=8, seed=5)
    drawn = np.random.default_rng(5).multinomial(20, np.full(20, 1 / 20), size=8)
    for resample, counts in enumerate(drawn):
        images = [image for image in range(20) for _ in range(counts[image])]
        texts = [text for image in images for text in np.flatnonzero(CAPTIONS.images == image)]
        i2t, t2i = ranks.i2t.ranks[images], ranks.t2i.ranks[texts]
        assert found["i2t_r5"][resample] == pytest.approx(100 * np.mean(i2t <= 5))
        assert found["t2i_r1"][resample] == pytest.approx(100 * np.mean(t2i <= 1))
        assert found["t2i_meanr"][resample] == pytest.approx(np.mean(t2i))
        recalls = [100 * np.mean(side <= k) for side in (i2t, t2i) for k in (1, 5, 10)]
        assert found["rsum"][resample] == pytest.approx(sum(recalls))


def test_bootstrap_shares_a_text_among_its_images() -> None:
    relevance = Relevance(np.array([0, 1, 1, 3]), np.array([0, 0, 1, 3]), 5, 4)
    ranks = ranked(relevance, seed=4)
    found = bootstrap_replicates(ranks, relevance, resamples=4, seed=9)
    drawn = np.random.default_rng(9).multinomial(3, np.full(3, 1 / 3), size=4)
    for resample, (zero, one, three) in enumerate(drawn):
        # Text 2 has no image and is not asked; text 0 goes half with image 0 and half with image 1.
        weights = np.array([(zero + one) / 2, one, three])
        assert found["t2i_meanr"][resample] == pytest.approx(np.average(ranks.t2i.ranks, weights=weights))
        assert found["i2t_meanr"][resample] == pytest.approx(np.average(ranks.i2t.ranks, weights=[zero, one, three]))


def test_bootstrap_is_repeatable_and_independent_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranked(CAPTIONS)
    once = bootstrap_replicates(ranks, CAPTIONS, resamples=50, seed=1)
    monkeypatch.setattr("openvse.evaluation.metrics._RESAMPLED_AT_ONCE", 45)
    again = bootstrap_replicates(ranks, CAPTIONS, resamples=50, seed=1)
    assert all(np.array_equal(once[name], again[name]) for name in once)
    other = bootstrap_replicates(ranks, CAPTIONS, resamples=50, seed=2)
    assert not np.array_equal(once["rsum"], other["rsum"])


def test_intervals_hold_the_estimate_and_narrow_with_data() -> None:
    widths = []
    for num_images in (50, 800):
        texts = np.arange(5 * num_images)
        relevance = Relevance(texts // 5, texts, num_images, len(texts))
        ranks = ranked(relevance)
        intervals = percentile_intervals([bootstrap_replicates(ranks, relevance, resamples=400)])
        metrics = retrieval_metrics(ranks)
        assert all(low <= metrics[name] <= high for name, (low, high) in intervals.items())
        widths.append(intervals["t2i_r10"][1] - intervals["t2i_r10"][0])
    assert widths[1] < widths[0] / 2


def test_intervals_of_folds_are_those_of_their_mean() -> None:
    low, high = percentile_intervals([{"rsum": np.linspace(0, 100, 101)}, {"rsum": np.linspace(100, 200, 101)}])["rsum"]
    assert (low, high) == (pytest.approx(52.5), pytest.approx(147.5))


def test_mean_of_folds() -> None:
    assert mean_metrics([{"rsum": 100.0}, {"rsum": 300.0}]) == {"rsum": 200.0}
    with pytest.raises(DataError):
        mean_metrics([])


@pytest.mark.medium
def test_intervals_are_those_of_drawing_whole_groups() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), generator.integers(1, 6, 30))
    columns = (generator.random((len(groups), 2)) < 0.4).astype(np.float64)
    found = grouped_intervals(columns, ["a", "b"], groups + 7, resamples=4000, seed=1)
    drawn = []
    for _ in range(4000):  # group by group, with all its queries
        rows = np.concatenate([np.flatnonzero(groups == n) for n in generator.integers(30, size=30)])
        drawn.append(100 * columns[rows].mean(axis=0))
    for number, name in enumerate("ab"):
        assert found[name] == pytest.approx(np.percentile(np.array(drawn)[:, number], [2.5, 97.5]), abs=1.5)


def test_queries_of_one_image_are_one_piece_of_evidence() -> None:
    columns = np.repeat([[0.0], [1.0]], 50, axis=0).repeat(2, axis=0)
    alone = grouped_intervals(columns, ["a"], np.arange(200), resamples=500, seed=0)["a"]
    together = grouped_intervals(columns, ["a"], np.arange(200) // 20, resamples=500, seed=0)["a"]
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])
    assert grouped_intervals(columns, ["a"], np.arange(200), resamples=0, seed=0) == {}
