"""Metrics of all relevant candidates: by definition, by trec_eval, and by a loop over every order."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import openvse
from openvse.errors import DataError
from openvse.evaluation.metrics import chance_metrics, retrieval_metrics
from openvse.evaluation.places import Places
from openvse.evaluation.ranking import QueryRanks, Ranks, rank_by_counting
from openvse.types import Relevance


def rank_all(scores: np.ndarray, gains: np.ndarray, *, block_size: int = 512) -> tuple[Ranks, Relevance]:
    """Rank a matrix of scores; pairs with a gain above 0 are relevant."""
    images, texts = np.nonzero(gains)
    relevance = Relevance(images, texts, *gains.shape)
    table = torch.from_numpy(scores)
    ranks = rank_by_counting(lambda rows, columns: table[rows, columns], relevance, block_size=block_size, every=True)
    return ranks, relevance


SEVERAL = ("map_at_r", "rprecision", "ndcg10", "mrr")


def columns(places: Places) -> np.ndarray:
    """The metrics of ``SEVERAL`` of each query."""
    return np.column_stack([places.map_at_r(), places.rprecision(), places.ndcg(), places.reciprocal_rank()])


def slow_columns(scores: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Sort the gallery of each query, the worst of equal scores first, and apply the definitions."""
    rows = []
    for row, worth in zip(scores, gains, strict=True):
        if not worth.any():
            continue
        order = sorted(range(len(row)), key=lambda item: (-row[item], worth[item]))
        found = [worth[item] for item in order]
        count = sum(gain > 0 for gain in found)
        hits = [sum(gain > 0 for gain in found[: k + 1]) for k in range(len(found))]
        precision = [hits[k] / (k + 1) if found[k] > 0 else 0.0 for k in range(count)]
        best = sorted(found, reverse=True)
        dcg, ideal = (sum(gain / math.log2(k + 2) for k, gain in enumerate(each[:10])) for each in (found, best))
        first = next(k for k, gain in enumerate(found, 1) if gain > 0)
        rows.append([sum(precision) / count, hits[count - 1] / count, dcg / ideal, 1 / first])
    return np.array(rows)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores full of ties, and 1 for relevant candidates; queries may have none."""
    shape = draw(st.integers(1, 7)), draw(st.integers(1, 14))
    cells = shape[0] * shape[1]
    scores = draw(st.lists(st.integers(-3, 3), min_size=cells, max_size=cells))
    gains = np.array(draw(st.lists(st.integers(0, 1), min_size=cells, max_size=cells))).reshape(shape)
    gains[draw(st.integers(0, shape[0] - 1)), draw(st.integers(0, shape[1] - 1))] = 1
    return np.array(scores, dtype=np.float32).reshape(shape), gains.astype(np.float64)


@pytest.mark.medium
@settings(deadline=None)
@given(table=tables(), block_size=st.integers(1, 20))
def test_metrics_equal_the_definition(table: tuple[np.ndarray, np.ndarray], block_size: int) -> None:
    scores, gains = table
    ranks, _ = rank_all(scores, gains, block_size=block_size)
    for found, side in ((ranks.i2t, (scores, gains)), (ranks.t2i, (scores.T, gains.T))):
        assert found.places is not None
        np.testing.assert_allclose(columns(found.places), slow_columns(*side), rtol=1e-12)
        assert np.array_equal(np.unique(found.places.queries), found.queries)
        assert np.array_equal(np.minimum.reduceat(found.places.places, starts(found)), found.ranks)


def starts(found: QueryRanks) -> np.ndarray:
    assert found.places is not None
    return np.unique(found.places.queries, return_index=True)[1]


def test_metrics_equal_trec_eval() -> None:
    """It sorts equal scores by name, last name first, so the names below make its ties count against the model."""
    trec = pytest.importorskip("pytrec_eval", reason="the extra 'dev' is not installed")
    generator = np.random.default_rng(0)
    gains = generator.choice([0, 1], p=[0.8, 0.2], size=(40, 90))
    gains[::7] = 0  # these queries have nothing relevant
    scores = generator.integers(-6, 7, size=gains.shape).astype(np.float32)  # mostly ties
    ranks, _ = rank_all(scores, gains.astype(np.float64))
    for found, worth, score in ((ranks.i2t, gains, scores), (ranks.t2i, gains.T, scores.T)):
        names = [[f"{9 - gain}-{item}" for item, gain in enumerate(row)] for row in worth]
        relevant = {
            str(query): {name: int(gain) for name, gain in zip(names[query], worth[query], strict=True)}
            for query in found.queries
        }
        run = {query: dict(zip(names[int(query)], score[int(query)].tolist(), strict=True)) for query in relevant}
        cuts = {f"map_cut_{(row > 0).sum()}" for row in worth if row.any()}
        judged = trec.RelevanceEvaluator(relevant, {"Rprec", "ndcg_cut_10", "recip_rank", *cuts})
        told = judged.evaluate(run)
        expected = [
            [
                told[str(query)][f"map_cut_{(worth[query] > 0).sum()}"],
                *(told[str(query)][name] for name in ("Rprec", "ndcg_cut_10", "recip_rank")),
            ]
            for query in found.queries
        ]
        assert found.places is not None
        np.testing.assert_allclose(columns(found.places), expected, atol=1e-9)


def test_missing_items_count_as_in_trec_eval() -> None:
    """Relevant items that are not in the gallery count among the R of their query, and are never found."""
    trec = pytest.importorskip("pytrec_eval", reason="the extra 'dev' is not installed")
    generator = np.random.default_rng(1)
    gains = (generator.random((30, 60)) < 0.1).astype(np.float64)
    gains[:, 0] = 1
    scores = generator.integers(-6, 7, size=gains.shape).astype(np.float32)
    ranks, _ = rank_all(scores, gains)
    assert ranks.i2t.places is not None
    missing = np.repeat(np.arange(0, 30, 2), 2)  # two items of every other query
    found = ranks.i2t.places.with_missing(missing)
    for query, row in enumerate(columns(found)):
        names = [f"{9 - int(gain)}-{item}" for item, gain in enumerate(gains[query])]
        relevant = {name: int(gain) for name, gain in zip(names, gains[query], strict=True)}
        relevant |= {f"missing-{n}": 1 for n in range((missing == query).sum())}
        cut = f"map_cut_{sum(relevant.values())}"
        judged = trec.RelevanceEvaluator({"q": relevant}, {cut, "Rprec", "ndcg_cut_10", "recip_rank"})
        told = judged.evaluate({"q": dict(zip(names, scores[query].tolist(), strict=True))})["q"]
        expected = [told[cut], *(told[name] for name in ("Rprec", "ndcg_cut_10", "recip_rank"))]
        np.testing.assert_allclose(row, expected, atol=1e-9)


@pytest.mark.medium
def test_chance_is_the_mean_over_all_orders() -> None:
    gains = np.array([[1.0, 1.0, 0.0, 0.0, 1.0]])
    orders = [rank_all(np.array([order], dtype=np.float32), gains) for order in permutations(range(5))]
    expected = chance_metrics(orders[0][1], orders[0][0])
    found = [retrieval_metrics(ranks) for ranks, _ in orders]
    for side in ("i2t", "t2i"):
        for name in SEVERAL:
            mean = np.mean([metrics[f"{side}_{name}"] for metrics in found])
            assert expected[f"{side}_{name}"] == pytest.approx(mean), (side, name)


def test_one_relevant_candidate_has_the_known_values() -> None:
    scores = np.array([[0.9, 0.8, 0.7, 0.1]], dtype=np.float32)
    ranks, _ = rank_all(scores, np.array([[0.0, 0.0, 1.0, 0.0]]))
    metrics = retrieval_metrics(ranks)
    assert metrics["i2t_map_at_r"] == metrics["i2t_rprecision"] == 0.0
    assert metrics["i2t_mrr"] == pytest.approx(100 / 3)
    assert metrics["i2t_ndcg10"] == pytest.approx(100 / math.log2(4))


def test_a_report_of_all_relevant_candidates_has_intervals_and_chance() -> None:
    generator = np.random.default_rng(3)
    images = generator.normal(size=(30, 8))
    texts = np.repeat(images, 4, axis=0) + generator.normal(size=(120, 8))
    plain, report = openvse.evaluate(images, texts), openvse.evaluate(images, texts, every=True)
    assert plain.metrics == {name: report.metrics[name] for name in plain.metrics}
    for side in ("i2t", "t2i"):
        for name in SEVERAL:
            low, high = report.intervals[f"{side}_{name}"]
            assert low <= report.metrics[f"{side}_{name}"] <= high
            assert 0 < report.chance[f"{side}_{name}"] < report.metrics[f"{side}_{name}"]
    assert "i2t nDCG@10" in report.to_markdown()
    assert "nDCG" not in plain.to_markdown()


def test_places_refuse_a_pair_twice() -> None:
    twice = Relevance(np.array([0, 0]), np.array([1, 1]), 2, 2)
    with pytest.raises(DataError, match="0.*1"):
        rank_by_counting(lambda rows, columns: torch.eye(2)[rows, columns], twice, every=True)
