"""Query bank normalisation, against loops written from the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from openvse.errors import DataError
from openvse.evaluation import Member, QueryBank, Report, Reranker, choose_betas, evaluate_sets
from openvse.functional import normalize
from openvse.scoring import hubs
from openvse.scoring.hubs import BETAS
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Relevance

IMAGES, TEXTS = 24, 48
RELEVANCE = Relevance(np.arange(TEXTS) % IMAGES, np.arange(TEXTS), IMAGES, TEXTS)


def member(seed: int, images: int, texts: int, embeddings: int = 1) -> Member:
    """Return random embeddings around one direction, so that some items are near to everything."""
    random = torch.Generator().manual_seed(seed)

    def some(count: int) -> EmbeddingSet:
        vectors = normalize(torch.randn(count, embeddings, 5, generator=random) + 0.4)
        return EmbeddingSet(vectors, torch.ones(count, embeddings, dtype=torch.bool))

    return Member(some(images), some(texts), SetMax())


def slow_ranks(scores: Tensor, of_bank: Tensor, relevant: Tensor, beta: float) -> list[int]:
    """Rank by the dynamic inverted softmax; the rows are queries, and those of the bank."""
    best = {int(row.argmax()) for row in of_bank}
    ranks = []
    for row, wanted in zip(scores.double(), relevant, strict=True):
        used = row
        if int(row.argmax()) in best:
            sums = [sum(math.exp(beta * float(each)) for each in column) for column in of_bank.T]
            used = torch.tensor(
                [math.exp(beta * float(s)) / total for s, total in zip(row, sums, strict=True)],
                dtype=torch.float64,
            )
        highest = used[wanted].max()
        ranks.append(1 + int(((used >= highest) & ~wanted).sum()))
    return ranks


def run(own: Member, bank: QueryBank | None, folds: int = 1) -> Report:
    return evaluate_sets(
        own.images, own.texts, RELEVANCE, SetMax(), bank=bank, folds=folds, resamples=0, keep=3, block_size=16
    )


@pytest.mark.parametrize(
    ("seed", "embeddings", "beta"), [(0, 1, 20.0), (1, 1, 3.0), (2, 2, 20.0), (3, 1, 80.0)]
)
def test_ranks_are_those_of_the_dynamic_inverted_softmax(seed: int, embeddings: int, beta: float) -> None:
    own, other = member(seed, IMAGES, TEXTS, embeddings), member(seed + 50, 7, 9, embeddings)
    report = run(own, QueryBank("bank", [other], (beta, 2 * beta)))
    assert report.outcomes is not None
    scores, relevant = SetMax()(own.images, own.texts), torch.zeros(IMAGES, TEXTS, dtype=torch.bool)
    relevant[RELEVANCE.images, RELEVANCE.texts] = True
    images_ask = slow_ranks(scores, SetMax()(other.images, own.texts), relevant, beta)
    texts_ask = slow_ranks(scores.T, SetMax()(own.images, other.texts).T, relevant.T, 2 * beta)
    assert report.outcomes.i2t.ranks.tolist() == images_ask
    assert report.outcomes.t2i.ranks.tolist() == texts_ask
    plain = run(own, None)
    assert plain.metrics != report.metrics
    assert report.normalized is not None
    assert report.normalized.before == plain.metrics
    first = report.outcomes.t2i.hits[:, 0]
    hits = RELEVANCE.images[report.outcomes.t2i.queries] == first
    assert hits.tolist() == [rank == 1 for rank in texts_ask]


def test_each_fold_is_normalised_by_itself() -> None:
    own, bank = member(4, IMAGES, TEXTS), QueryBank("bank", [member(5, 6, 8)], (20.0, 20.0))
    report = run(own, bank, folds=2)
    halves = []
    for start in (0, IMAGES // 2):
        images = slice(start, start + IMAGES // 2)
        texts = torch.from_numpy(np.flatnonzero(np.isin(RELEVANCE.images, np.arange(IMAGES)[images])))
        part = own.part(images, texts)
        relevance = Relevance(RELEVANCE.images[texts] - start, np.arange(len(texts)), IMAGES // 2, len(texts))
        halves.append(
            evaluate_sets(part.images, part.texts, relevance, SetMax(), bank=bank, resamples=0).metrics
        )
    assert report.metrics["rsum"] == pytest.approx(np.mean([half["rsum"] for half in halves]))


@pytest.mark.medium
def test_beta_is_the_best_one_of_each_direction() -> None:
    own, bank = member(6, IMAGES, TEXTS), QueryBank("bank", [member(7, 20, 30)], (1.0, 1.0))
    chosen = choose_betas([own], RELEVANCE, bank)
    assert chosen.is_chosen
    for place, side in enumerate(("i2t", "t2i")):
        reached = {
            beta: sum(
                run(own, QueryBank("b", bank.members, (beta, beta))).metrics[f"{side}_r{k}"]
                for k in (1, 5, 10)
            )
            for beta in BETAS
        }
        assert reached[chosen.betas[place]] == max(reached.values())
        assert len(set(reached.values())) > 1


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_SIDE", 4)
    scores, betas = np.random.default_rng(0).standard_normal((10, 13)).astype(np.float32), (2.0, 50.0)
    amounts, best, items = hubs.measure_attraction(lambda rows, columns: scores[rows, columns], 10, 13, betas)
    for of_beta, beta in zip(amounts, betas, strict=True):
        expected = np.log(np.exp(beta * scores.astype(np.float64)).mean(axis=1)) / beta
        assert of_beta == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(items, scores.argmax(axis=0))
    assert np.array_equal(best, scores.max(axis=0))


def test_a_bank_is_refused_beside_reranking_and_all_places() -> None:
    own, bank = member(8, IMAGES, TEXTS), QueryBank("bank", [member(9, 4, 4)], (20.0, 20.0))
    for reranker, every in ((Reranker(own, 3), False), (None, True)):
        with pytest.raises(DataError, match="query bank"):
            evaluate_sets(
                own.images,
                own.texts,
                RELEVANCE,
                SetMax(),
                bank=bank,
                reranker=reranker,
                every=every,
                resamples=0,
            )
