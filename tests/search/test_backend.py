from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.functional import normalize, set_max_scores
from openvse.search import ExactBackend
from openvse.similarities import Order
from openvse.stores.ordering import pack, unpack
from openvse.types import EmbeddingSet


def queries_of(vectors: Tensor, mask: Tensor | None = None) -> EmbeddingSet:
    return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask)


def slow_search(queries: EmbeddingSet, vectors: np.ndarray, top_k: int) -> list[list[tuple[float, int]]]:
    """Score one pair of embeddings at a time and sort by score, then position."""
    answers = []
    for query, exists in zip(queries.vectors.numpy(), queries.mask.numpy(), strict=True):
        scored = [
            (max(float(one @ other) for one in query[exists] for other in item), position)
            for position, item in enumerate(vectors)
        ]
        answers.append(sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:top_k])
    return answers


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    num_queries=st.integers(1, 5),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    top_k=st.integers(1, 14),
    block_values=st.sampled_from([1, 20, 1 << 22]),
)
def test_equals_a_slow_search(
    seed: int, count: int, num_queries: int, shape: tuple[int, int], top_k: int, block_values: int
) -> None:
    """Small integers make scores exact and ties frequent."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-2, 3, (count, shape[0], 4), generator=generator).float().numpy()
    mask = torch.rand(num_queries, shape[1], generator=generator) > 0.3
    mask[:, 0] = True
    queries = queries_of(torch.randint(-2, 3, (num_queries, shape[1], 4), generator=generator).float(), mask)
    scores, positions = ExactBackend(vectors, block_values).search(queries, top_k)
    assert scores.shape == positions.shape == (num_queries, min(top_k, count))
    expected = slow_search(queries, vectors, top_k)
    assert scores.tolist() == [[score for score, _ in row] for row in expected]
    assert positions.tolist() == [[position for _, position in row] for row in expected]


def test_equals_topk_of_all_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    items = normalize(torch.randn(3000, 1, 32, generator=generator))
    queries = queries_of(normalize(torch.randn(40, 1, 32, generator=generator)))
    scores, positions = ExactBackend(items.numpy(), 1 << 14).search(queries, 10)
    expected = (queries.vectors[:, 0] @ items[:, 0].T).topk(10, dim=1)
    assert torch.equal(positions, expected.indices)
    assert torch.allclose(scores, expected.values, atol=1e-6)


def test_ties_come_in_the_order_of_the_items() -> None:
    vectors = np.ones((50, 1, 4), np.float32)
    for block_values in (1, 30, 1 << 22):
        _, positions = ExactBackend(vectors, block_values).search(queries_of(torch.ones(2, 1, 4)), 7)
        assert positions.tolist() == [list(range(7))] * 2


def late_interaction(images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
    """The best image embedding of each text embedding, summed: the two sides play different parts."""
    return torch.einsum("ikd,tld->itlk", images.vectors, texts.vectors).amax(dim=3).sum(dim=2)


@pytest.mark.parametrize("block_values", [1, 300, 1 << 22])
def test_the_similarity_decides_and_the_items_are_its_images(block_values: int) -> None:
    generator = torch.Generator().manual_seed(0)
    items = normalize(torch.randn(40, 3, 8, generator=generator))
    queries = queries_of(normalize(torch.randn(5, 2, 8, generator=generator)))
    for similarity in (late_interaction, Order()):
        expected = similarity(queries_of(items), queries).T.topk(10, dim=1)
        backend = ExactBackend(items.numpy(), block_values, score=similarity)
        scores, positions = backend.search(queries, 10)
        assert torch.equal(positions, expected.indices)
        assert torch.allclose(scores, expected.values, atol=1e-6)


def test_half_precision_vectors_are_scored_in_single() -> None:
    vectors = np.full((2, 1, 4096), 0.01, np.float16)
    vectors[1] = 0.02
    scores, positions = ExactBackend(vectors).search(queries_of(torch.ones(1, 1, 4096)), 2)
    assert positions.tolist() == [[1, 0]]
    assert scores[0, 0] == pytest.approx(4096 * float(np.float16(0.02)), rel=1e-5)


def test_memory_is_bounded_by_the_block() -> None:
    shapes: list[tuple[int, ...]] = []

    def watch(items: EmbeddingSet, queries: EmbeddingSet) -> Tensor:
        shapes.append((len(queries) * len(items), items.vectors.numel()))
        return set_max_scores(items, queries)

    block_values = 1 << 12
    queries = queries_of(torch.zeros(200, 1, 8))
    backend = ExactBackend(np.zeros((3000, 1, 8), np.float32), block_values, score=watch)
    scores, _ = backend.search(queries, 5)
    assert scores.shape == (200, 5)
    assert max(max(shape) for shape in shapes) <= block_values
    assert len(shapes) < 400


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20), st.integers(0, 2**31))
def test_keys_sort_like_scores_then_positions(values: list[float], start: int) -> None:
    scores = torch.tensor([values])
    keys = pack(scores, torch.arange(start, start + len(values)))
    order = keys[0].argsort(descending=True).tolist()
    assert order == sorted(range(len(values)), key=lambda place: (-values[place], place))
    unpacked, positions = unpack(keys)
    assert torch.equal(unpacked, scores + 0.0)
    assert positions[0].tolist() == list(range(start, start + len(values)))


def test_one_query_hands_only_what_is_promising_to_the_threads_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait busily for more work once they are woken, and take the processor from the product."""
    generator = torch.Generator().manual_seed(0)
    backend = ExactBackend(normalize(torch.randn(50_000, 1, 8, generator=generator)).numpy())
    converted = []
    long = Tensor.long

    def noted(self: Tensor) -> Tensor:
        converted.append(self.numel())
        return long(self)

    monkeypatch.setattr(Tensor, "long", noted)
    backend.search(queries_of(normalize(torch.randn(1, 1, 8, generator=generator))), 10)
    assert 10 <= max(converted) < 1000
