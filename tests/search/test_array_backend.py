"""The exact search with arrays ranks as the one with tensors does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openvse.errors import IndexFormatError, ModelError
from openvse.index.segments import Segment
from openvse.runtime import ArraySet
from openvse.search import ArrayBackend, ExactBackend
from openvse.types import EmbeddingSet


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=shape).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("num_embeddings", [1, 3])
@pytest.mark.parametrize("compound", [False, True])
def test_it_ranks_as_with_tensors(dtype: str, num_embeddings: int, compound: bool) -> None:
    rng = np.random.default_rng(num_embeddings)
    vectors = unit(rng, 300, num_embeddings, 8).astype(dtype)
    vectors[100:110] = vectors[:10]  # ties
    order = rng.permutation(300).astype(np.int32)
    order[::7] = -1  # rows that belong to no item any more
    segments = [Segment(vectors[:120], order[:120]), Segment(vectors[120:], order[120:])]
    queries = unit(rng, 4, 2, 8)
    mask = np.array([[True, True], [True, False], [True, True], [True, True]])
    weights = rng.normal(size=(3, 4)).astype(np.float32) if compound else None
    allowed = rng.random(300) < 0.6
    tensors = EmbeddingSet(torch.from_numpy(queries), torch.from_numpy(mask))
    ours = ExactBackend(segments, block_values=500).search_some(
        tensors, 12, weights=None if weights is None else torch.from_numpy(weights), allowed=allowed
    )
    theirs = ArrayBackend(segments, block_values=500).search_some(
        ArraySet(queries, mask), 12, weights=weights, allowed=allowed
    )
    assert theirs[1].tolist() == ours[1].tolist()
    assert np.allclose(theirs[0], ours[0].numpy(), atol=1e-6)


def test_fewer_items_than_wanted_and_none() -> None:
    rng = np.random.default_rng(0)
    segments = [Segment(unit(rng, 3, 1, 4), np.arange(3, dtype=np.int32))]
    queries = ArraySet.full(unit(rng, 2, 1, 4))
    scores, positions = ArrayBackend(segments).search(queries, 10)
    assert scores.shape == positions.shape == (2, 3)
    nothing = ArrayBackend(segments).search_some(queries, 10, allowed=np.zeros(3, dtype=bool))
    assert nothing[0].shape == (2, 0)


def test_sentences_stand_on_the_side_of_the_texts() -> None:
    rng = np.random.default_rng(0)
    items, queries = unit(rng, 5, 1, 4), unit(rng, 1, 1, 4)
    segments = [Segment(items, np.arange(5, dtype=np.int32))]
    backend = ArrayBackend(segments, kind="order", swapped=True)
    excess = np.maximum(np.abs(items[:, 0]) - np.abs(queries[0]), 0)
    assert backend.search(ArraySet.full(queries), 1)[1].item() == (-np.square(excess).sum(axis=1)).argmax()


def test_numbers_that_are_not_finite_are_refused() -> None:
    rng = np.random.default_rng(0)
    items = unit(rng, 3, 1, 4)
    queries = ArraySet.full(unit(rng, 1, 1, 4))
    bad = items.copy()
    bad[1] = np.nan
    with pytest.raises(IndexFormatError, match=r"embedding of b\.jpg"):
        ArrayBackend([Segment(bad, np.arange(3, dtype=np.int32))], names=["a.jpg", "b.jpg", "c.jpg"]).search(
            queries, 1
        )
    with pytest.raises(ModelError, match="check the query"):
        ArrayBackend([Segment(items, np.arange(3, dtype=np.int32))]).search(
            ArraySet.full(np.full((1, 1, 4), np.inf, np.float32)), 1
        )
