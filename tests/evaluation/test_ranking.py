from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.errors import DataError, ModelError
from openvse.evaluation.ranking import rank_by_counting
from openvse.types import Relevance


def relevance_of(matrix: np.ndarray) -> Relevance:
    """Return the pairs of a bool matrix [I, T]."""
    images, texts = np.nonzero(matrix)
    return Relevance(images, texts, *matrix.shape)


def blocks_of(scores: Tensor) -> Callable[[slice, slice], Tensor]:
    return lambda rows, columns: scores[rows, columns]


def slow_ranks(scores: np.ndarray, relevant: np.ndarray) -> tuple[list[int], list[int], list[bool]]:
    """Rank by the definition, one query (a row) at a time: queries, their ranks, whether they are tied."""
    queries, ranks, tied = [], [], []
    for query, (row, is_relevant) in enumerate(zip(scores, relevant, strict=True)):
        if not is_relevant.any():
            continue
        best = max(score for score, good in zip(row, is_relevant, strict=True) if good)
        rivals = [score for score, good in zip(row, is_relevant, strict=True) if not good]
        queries.append(query)
        ranks.append(1 + sum(score >= best for score in rivals))
        tied.append(any(score == best for score in rivals))
    return queries, ranks, tied


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A score matrix full of ties and negative numbers, and which cells are relevant (at least one)."""
    shape = draw(st.integers(1, 9)), draw(st.integers(1, 13))
    cells = shape[0] * shape[1]
    scores = draw(st.lists(st.integers(-3, 2), min_size=cells, max_size=cells))
    relevant = np.array(draw(st.lists(st.booleans(), min_size=cells, max_size=cells))).reshape(shape)
    relevant[draw(st.integers(0, shape[0] - 1)), draw(st.integers(0, shape[1] - 1))] = True
    return np.array(scores, dtype=np.float32).reshape(shape), relevant


@pytest.mark.medium
@settings(deadline=None)
@given(table=tables(), block_size=st.integers(1, 20))
def test_ranks_equal_the_definition(table: tuple[np.ndarray, np.ndarray], block_size: int) -> None:
    scores, relevant = table
    ranks = rank_by_counting(blocks_of(torch.from_numpy(scores)), relevance_of(relevant), block_size=block_size)
    for found, side in ((ranks.i2t, (scores, relevant)), (ranks.t2i, (scores.T, relevant.T))):
        queries, expected, tied = slow_ranks(*side)
        assert found.queries.tolist() == queries
        assert found.ranks.tolist() == expected
        assert found.tied.tolist() == tied
        assert found.num_tied == sum(tied)
        assert (found.num_queries, found.num_candidates) == side[0].shape


@pytest.mark.parametrize(("num_images", "num_texts"), [(1025, 2049), (300, 1), (1, 300)])
def test_equal_embeddings_rank_last(num_images: int, num_texts: int) -> None:
    vector = torch.nn.functional.normalize(torch.randn(33, generator=torch.Generator().manual_seed(0)), dim=0)
    images, texts = vector.expand(num_images, -1).contiguous(), vector.expand(num_texts, -1).contiguous()
    pairs = np.arange(min(num_images, num_texts))
    ranks = rank_by_counting(
        lambda rows, columns: (images[rows] @ texts[columns].T).round(decimals=5),
        Relevance(pairs, pairs, num_images, num_texts),
    )
    assert (ranks.i2t.ranks == num_texts).all()
    assert (ranks.t2i.ranks == num_images).all()
    assert ranks.i2t.num_tied == (len(pairs) if num_texts > 1 else 0)


def test_a_matrix_product_keeps_equal_embeddings_equal() -> None:
    """No block is a single row, which other kernels would score with other rounding."""
    vector = torch.nn.functional.normalize(torch.randn(1000, generator=torch.Generator().manual_seed(0)), dim=0)
    images = vector.expand(65, -1).contiguous()
    relevance = Relevance(np.arange(65), np.arange(65), 65, 65)
    ranks = rank_by_counting(lambda r, c: images[r] @ images[c].T, relevance, block_size=64)
    assert (ranks.i2t.ranks == 65).all()


def test_other_relevant_candidates_are_never_ahead() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.9, 0.1], [0.5, 0.2, 0.2, 0.2]])
    relevance = Relevance(np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 1, 3]), 2, 4)
    ranks = rank_by_counting(blocks_of(scores), relevance)
    assert ranks.i2t.ranks.tolist() == [1, 3]
    assert ranks.i2t.tied.tolist() == [False, True]
    assert ranks.t2i.ranks.tolist() == [1, 1, 1, 1]


def test_repeated_pairs_count_once() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.3, 0.2]])
    once = Relevance(np.array([0, 1]), np.array([0, 1]), 2, 2)
    twice = Relevance(np.array([0, 0, 1]), np.array([0, 0, 1]), 2, 2)
    for relevance in (once, twice):
        ranks = rank_by_counting(blocks_of(scores), relevance)
        assert ranks.i2t.ranks.tolist() == [2, 2]


def test_only_blocks_with_pairs_are_scored_twice_and_none_is_changed() -> None:
    scores = torch.randn(40, 200, generator=torch.Generator().manual_seed(1))
    before = scores.clone()
    asked: list[tuple[int, int]] = []

    def score(rows: slice, columns: slice) -> Tensor:
        asked.append((rows.start, columns.start))
        assert scores[rows, columns].numel() <= 5 * 25  # 40 / 9 images, rounded up, and their texts
        return scores[rows, columns]

    rank_by_counting(score, Relevance(np.arange(200) // 5, np.arange(200), 40, 200), block_size=10)
    assert torch.equal(scores, before)
    assert len(set(asked)) == 9 * 9
    assert len(asked) == 81 + 9


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("cell", [(0, 0), (3, 1)])
def test_scores_that_are_no_numbers_are_refused(value: float, cell: tuple[int, int]) -> None:
    scores = torch.zeros(4, 4)
    scores[cell] = value
    with pytest.raises(ModelError, match=f"{cell[0]}.*{cell[1]}.*NaN"):
        rank_by_counting(blocks_of(scores), Relevance(np.arange(4), np.arange(4), 4, 4), block_size=2)


@pytest.mark.parametrize(
    ("images", "texts", "message"), [([], [], ""), ([0, 4], [0, 0], "4.*0.*3"), ([0, 1], [0, -1], "-1.*0.*4")]
)
def test_impossible_relevance_is_refused(images: list[int], texts: list[int], message: str) -> None:
    pairs = np.array(images, dtype=np.int64), np.array(texts, dtype=np.int64)
    with pytest.raises(DataError, match=message or None) as error:
        rank_by_counting(blocks_of(torch.zeros(4, 5)), Relevance(*pairs, 4, 5))
    assert "\n" not in str(error.value)
