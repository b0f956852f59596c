"""The exact search finds and orders what a slow loop does, whatever the model compares with."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.functional import normalize, set_max_scores
from openvse.indexing.vector_files import MappedVectors
from openvse.retrieval.hit_reranker import ModelComparison
from openvse.runtime.arrays import ArraySet
from openvse.search.exact import ArrayComparison, EmbeddedQueries, ExactSearch
from openvse.similarities import Order, SetMax
from openvse.stores import int8 as ranking
from openvse.stores.int8 import pack, unpack
from openvse.types import EmbeddingSet


def queries_of(vectors: Tensor, mask: Tensor | None = None) -> EmbeddedQueries:
    exists = np.ones(vectors.shape[:2], dtype=bool) if mask is None else mask.numpy()
    return EmbeddedQueries(ArraySet(vectors.numpy(), exists), None)


class Scored:
    """A model with nothing but a score."""

    def __init__(self, score: Callable[[EmbeddingSet, EmbeddingSet], Tensor]) -> None:
        self.score = score


def slow_search(queries: EmbeddedQueries, vectors: np.ndarray, top_k: int) -> list[list[tuple[float, int]]]:
    """Score one pair of embeddings at a time and sort by score, then position."""
    answers = []
    for query, exists in zip(queries.parts.vectors, queries.parts.mask, strict=True):
        scored = [
            (max(float(one @ other) for one in query[exists] for other in item), position)
            for position, item in enumerate(vectors)
        ]
        answers.append(sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:top_k])
    return answers


@pytest.mark.medium
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
    scores, positions = ExactSearch(vectors, block_values=block_values).search(queries, top_k)
    assert scores.shape == positions.shape == (num_queries, min(top_k, count))
    expected = slow_search(queries, vectors, top_k)
    assert scores.tolist() == [[score for score, _ in row] for row in expected]
    assert positions.tolist() == [[position for _, position in row] for row in expected]


def test_equals_topk_of_all_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    items = normalize(torch.randn(3000, 1, 32, generator=generator))
    queries = queries_of(normalize(torch.randn(40, 1, 32, generator=generator)))
    scores, positions = ExactSearch(items.numpy(), block_values=1 << 14).search(queries, 10)
    expected = (torch.from_numpy(queries.parts.vectors[:, 0]) @ items[:, 0].T).topk(10, dim=1)
    assert positions.tolist() == expected.indices.tolist()
    assert np.allclose(scores, expected.values.numpy(), atol=1e-6)


def late_interaction(images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
    """The best image embedding of each text embedding, summed: the two sides play different parts."""
    return torch.einsum("ikd,tld->itlk", images.vectors, texts.vectors).amax(dim=3).sum(dim=2)


@pytest.mark.medium
@pytest.mark.parametrize("block_values", [1, 300, 1 << 22])
def test_the_similarity_decides_and_the_items_are_its_images(block_values: int) -> None:
    generator = torch.Generator().manual_seed(0)
    items = normalize(torch.randn(40, 3, 8, generator=generator))
    asked = normalize(torch.randn(5, 2, 8, generator=generator))
    sets = [EmbeddingSet(each, torch.ones(each.shape[:2], dtype=torch.bool)) for each in (items, asked)]
    for similarity in (late_interaction, Order()):
        expected = similarity(*sets).T.topk(10, dim=1)
        search = ExactSearch(items.numpy(), ModelComparison(Scored(similarity)), block_values=block_values)
        scores, positions = search.search(queries_of(asked), 10)
        assert positions.tolist() == expected.indices.tolist()
        assert np.allclose(scores, expected.values.numpy(), atol=1e-6)


def test_half_precision_vectors_are_scored_in_single() -> None:
    vectors = np.full((2, 1, 4096), 0.01, np.float16)
    vectors[1] = 0.02
    scores, positions = ExactSearch(vectors).search(queries_of(torch.ones(1, 1, 4096)), 2)
    assert positions.tolist() == [[1, 0]]
    assert scores[0, 0] == pytest.approx(4096 * float(np.float16(0.02)), rel=1e-5)


@pytest.mark.medium
def test_memory_is_bounded_by_the_block() -> None:
    shapes: list[tuple[int, ...]] = []

    def watch(items: EmbeddingSet, queries: EmbeddingSet) -> Tensor:
        shapes.append((len(queries) * len(items), items.vectors.numel()))
        return set_max_scores(items, queries)

    block_values = 1 << 12
    queries = queries_of(torch.zeros(200, 1, 8))
    compare = ModelComparison(Scored(watch))
    scores, _ = ExactSearch(np.zeros((3000, 1, 8), np.float32), compare, block_values=block_values).search(queries, 5)
    assert scores.shape == (200, 5)
    assert max(max(shape) for shape in shapes) <= block_values
    assert len(shapes) < 400


@pytest.mark.medium
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20), st.integers(0, 2**31))
def test_keys_sort_like_scores_then_positions(values: list[float], start: int) -> None:
    scores = np.array([values], np.float32)
    keys = pack(scores, np.arange(start, start + len(values)))
    order = np.argsort(-keys[0]).tolist()
    assert order == sorted(range(len(values)), key=lambda place: (-values[place], place))
    unpacked, positions = unpack(keys)
    assert np.array_equal(unpacked, scores + np.float32(0))
    assert positions[0].tolist() == list(range(start, start + len(values)))


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=shape).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


@pytest.fixture(params=["with PyTorch", "without"])
def torch_or_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products by PyTorch's kernels, and by NumPy's, which an installation without PyTorch has."""
    if request.param == "without":
        monkeypatch.setattr(ranking, "loaded_torch", lambda: None)
    yield


@pytest.mark.medium
@pytest.mark.usefixtures("torch_or_not")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("num_embeddings", [1, 3])
@pytest.mark.parametrize("compound", [False, True])
def test_models_of_pytorch_and_exported_ones_rank_alike(dtype: str, num_embeddings: int, compound: bool) -> None:
    rng = np.random.default_rng(num_embeddings)
    vectors = unit(rng, 300, num_embeddings, 8).astype(dtype)
    vectors[100:110] = vectors[:10]  # ties
    order = rng.permutation(300).astype(np.int32)
    order[::7] = -1  # rows that belong to no item any more
    segments = [MappedVectors(vectors[:120], order[:120]), MappedVectors(vectors[120:], order[120:])]
    mask = np.array([[True, True], [True, False], [True, True], [True, True]])
    weights = rng.normal(size=(3, 4)).astype(np.float32) if compound else None
    queries = EmbeddedQueries(ArraySet(unit(rng, 4, 2, 8), mask), weights)
    allowed = rng.random(300) < 0.6
    found = []
    for compare in (ArrayComparison(), ModelComparison(Scored(SetMax())), ModelComparison(Scored(Order()))):
        scores, positions = ExactSearch(segments, compare, block_values=500).search(queries, 12, allowed=allowed)
        scored = compare(vectors.astype(np.float64), queries.parts)
        scored = scored.T if weights is None else weights.astype(np.float64) @ scored.T
        by_position = {int(place): row for row, place in enumerate(order) if place >= 0 and allowed[place]}
        for query, row in enumerate(scored):
            rounded = {place: np.float32(row[number]) for place, number in by_position.items()}
            best = sorted(rounded, key=lambda place: (-rounded[place], place))[:12]
            assert positions[query].tolist() == best
            assert scores[query].tolist() == [rounded[place] for place in best]
        found.append(positions.tolist())
    assert found[0] == found[1] != found[2]


@pytest.mark.usefixtures("torch_or_not")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("num_queries", [1, 5])
def test_products_are_within_their_margin(dtype: type, num_queries: int) -> None:
    rng = np.random.default_rng(0)
    rows, queries = unit(rng, 9000, 16).astype(dtype), unit(rng, num_queries, 16)
    products, margin = ranking.inner_products(rows, queries)
    assert np.abs(products - rows.astype(np.float64) @ queries.T).max() <= margin


def test_no_item_that_fits_and_no_query() -> None:
    rng = np.random.default_rng(0)
    search = ExactSearch(unit(rng, 3, 1, 4))
    queries = EmbeddedQueries(ArraySet.full(unit(rng, 2, 1, 4)), None)
    assert search.search(queries, 10, allowed=np.zeros(3, dtype=bool))[0].shape == (2, 0)
    assert search.search(EmbeddedQueries(ArraySet.full(np.empty((0, 1, 4), np.float32)), None), 3)[0].shape == (0, 0)


@pytest.mark.parametrize("compare", [ArrayComparison("order", swapped=True), ModelComparison(Scored(Order()), True)])
def test_sentences_stand_on_the_side_of_the_texts(compare: ArrayComparison | ModelComparison) -> None:
    rng = np.random.default_rng(0)
    items, asked = unit(rng, 5, 1, 4), unit(rng, 1, 1, 4)
    found = ExactSearch(items, compare).search(EmbeddedQueries(ArraySet.full(asked), None), 1)[1]
    excess = np.maximum(np.abs(items[:, 0]) - np.abs(asked[0]), 0)
    assert found.item() == (-np.square(excess).sum(axis=1)).argmax()
