"""Ranking again, against sorting the whole matrix by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.errors import DataError, ModelError
from openvse.evaluation.embed import Member
from openvse.evaluation.report import Report, evaluate_sets
from openvse.evaluation.rerank import Reranker
from openvse.functional import normalize, set_max_scores
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Relevance
from tests.naming import names, refusal

IMAGES, CAPTIONS = 9, 3
TEXTS = IMAGES * CAPTIONS
RELEVANCE = Relevance(np.arange(TEXTS) // CAPTIONS, np.arange(TEXTS), IMAGES, TEXTS)


def member(seed: int, noise: float) -> Member:
    """Return a model in whose space an image and its texts agree, the better the less noise there is."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(IMAGES, 1, 8, dtype=torch.float64, generator=generator)
    texts = images.repeat_interleave(CAPTIONS, 0)
    texts = texts + noise * torch.randn(texts.shape, dtype=torch.float64, generator=generator)
    return Member(embedded(images), embedded(texts), SetMax())


def embedded(vectors: Tensor) -> EmbeddingSet:
    return EmbeddingSet(normalize(vectors), torch.ones(vectors.shape[:2], dtype=torch.bool))


WEAK, STRONG = member(0, 3.0), member(1, 0.8)


def run(reranker: Reranker | None, proposer: Member = WEAK, folds: int = 1, block_size: int = 4) -> Report:
    return evaluate_sets(
        proposer.images,
        proposer.texts,
        RELEVANCE,
        proposer.similarity,
        reranker=reranker,
        folds=folds,
        block_size=block_size,
        resamples=0,
    )


def matrix(of: Member) -> Tensor:
    return of.similarity(of.images, of.texts)


def slow_ranks(proposed: Tensor, again: Tensor, relevant: Tensor, top: int, weight: float) -> list[int]:
    """Sort each row by the proposer, sort its head anew, and look for the best relevant candidate."""
    ranks = []
    for row, anew, wanted in zip(proposed, again, relevant, strict=True):
        order = row.argsort(descending=True).tolist()
        mixed = {c: weight * float(anew[c]) + (1 - weight) * float(row[c]) for c in order[:top]}
        order = sorted(order[:top], key=lambda c: -mixed[c]) + order[top:]
        ranks.append(1 + min(order.index(c) for c in wanted.nonzero().flatten().tolist()))
    return ranks


@pytest.mark.medium
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.sampled_from([0.0, 0.4, 1.0]), st.integers(1, 9))
def test_equals_sorting_by_hand(top: int, weight: float, block_size: int) -> None:
    report = run(Reranker(STRONG, top, weight), block_size=block_size)
    relevant = torch.from_numpy(np.arange(IMAGES)[:, None] == np.arange(TEXTS) // CAPTIONS)
    i2t = slow_ranks(matrix(WEAK), matrix(STRONG), relevant, top, weight)
    t2i = slow_ranks(matrix(WEAK).T, matrix(STRONG).T, relevant.T, top, weight)
    for side, ranks in (("i2t", i2t), ("t2i", t2i)):
        for k in (1, 5, 10):
            assert report.metrics[f"{side}_r{k}"] == pytest.approx(100 * np.mean(np.array(ranks) <= k))
        assert report.metrics[f"{side}_meanr"] == pytest.approx(np.mean(ranks))


def test_ties_count_against_the_model() -> None:
    flat = torch.ones(1, 1, 8, dtype=torch.float64)
    indifferent = Member(embedded(flat.repeat(IMAGES, 1, 1)), embedded(flat.repeat(TEXTS, 1, 1)), SetMax())
    report = run(Reranker(indifferent, 4), proposer=STRONG)
    # Of four equal images, the one that is relevant stands last; of four equal texts, at least the fourth is wrong.
    assert report.metrics["t2i_r1"] == 0
    assert report.remarks.tied_t2i > 0


def test_folds_are_ranked_again_by_themselves() -> None:
    again = run(Reranker(STRONG, TEXTS), folds=3).metrics
    assert again == pytest.approx(run(None, proposer=STRONG, folds=3).metrics)


def test_the_report_says_so() -> None:
    report = run(Reranker(STRONG, 5, 0.5))
    assert report.reranked is not None and report.reranked.seconds > 0
    assert names(report.to_markdown(), 5, 0.5)
    assert run(None).reranked is None
    assert "ranked again" not in run(None).to_markdown()


def test_other_items_are_refused() -> None:
    fewer = Member(STRONG.images[:4], STRONG.texts, SetMax())
    assert names(refusal(DataError, lambda: run(Reranker(fewer, 3))), "4", "27", "9", "27")


def test_a_similarity_of_blocks_only_cannot_rank_again() -> None:
    assert names(refusal(ModelError, run, Reranker(Member(STRONG.images, STRONG.texts, set_max_scores), 3)), "set_max")


def test_the_first_results_are_those_of_the_new_order() -> None:
    report = evaluate_sets(
        WEAK.images, WEAK.texts, RELEVANCE, WEAK.similarity, reranker=Reranker(STRONG, 4), resamples=0, keep=3
    )
    assert report.outcomes is not None
    proposed, again = matrix(WEAK), matrix(STRONG)
    for side, first, second in ((report.outcomes.i2t, proposed, again), (report.outcomes.t2i, proposed.T, again.T)):
        for query, found, scores in zip(side.queries, side.hits, side.scores, strict=True):
            head = first[query].argsort(descending=True)[:4]
            order = head[second[query][head].argsort(descending=True)][:3]
            assert found.tolist() == order.tolist()
            np.testing.assert_allclose(scores, second[query][order], rtol=1e-6)
