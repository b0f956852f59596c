"""Order similarity against the definition, a coordinate at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.similarities import Order, scores
from openvse.types import EmbeddingSet
from tests.similarities.random_sets import random_set


def whole(vectors: Tensor) -> EmbeddingSet:
    return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))


def slow_score(image: Tensor, text: Tensor) -> float:
    """``-|max(0, |t| - |i|)|^2``."""
    return -sum(max(0.0, abs(float(t)) - abs(float(i))) ** 2 for i, t in zip(image, text, strict=True))


@pytest.fixture(params=[1, 20, 1 << 18], ids=lambda size: f"tiles of {size}")
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the work into tiles of one pair, of 2 x 2 pairs, or not at all."""
    monkeypatch.setattr(scores, "_DIFFERENCES", request.param)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_equals_the_loop(num_images: int, num_texts: int, k: int, m: int, seed: int) -> None:
    images, texts = random_set(num_images, k, seed), random_set(num_texts, m, seed + 1)
    scores = Order()(images, texts)
    for i in range(num_images):
        for t in range(num_texts):
            best = max(
                slow_score(images.vectors[i, a], texts.vectors[t, b])
                for a in range(k)
                for b in range(m)
                if images.mask[i, a] and texts.mask[t, b]
            )
            assert abs(float(scores[i, t]) - best) < 1e-10


@pytest.mark.usefixtures("tiles")
def test_tiles_do_not_show() -> None:
    images, texts = random_set(5, 1, 0), random_set(7, 1, 1)
    expected = [[slow_score(i, t) for t in texts.vectors[:, 0]] for i in images.vectors[:, 0]]
    torch.testing.assert_close(Order()(images, texts), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("tiles")
def test_the_gradient_is_that_of_the_plain_formula() -> None:
    raw = [random_set(5, 1, 0).vectors.requires_grad_(), random_set(7, 1, 1).vectors.requires_grad_()]
    weights = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((Order()(whole(raw[0]), whole(raw[1])) * weights).sum(), raw)
    differences = raw[1][:, 0].abs() - raw[0][:, 0].abs().unsqueeze(1)
    plain = -differences.clamp(min=0).square().sum(dim=-1)
    for found, expected in zip(ours, torch.autograd.grad((plain * weights).sum(), raw), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_gradcheck() -> None:
    raw = [random_set(3, 2, seed).vectors.requires_grad_() for seed in (0, 1)]
    assert torch.autograd.gradcheck(lambda x, y: Order()(whole(x), whole(y)), raw)


def test_memory_holds_a_tile_and_not_all_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    tiles = scores._tiles

    def recorded(images: Tensor, texts: Tensor):
        for rows, columns, excess in tiles(images, texts):
            sizes.append(excess.numel())
            yield rows, columns, excess

    monkeypatch.setattr(scores, "_tiles", recorded)
    images, texts = random_set(50, 1, 0, dim=512), random_set(60, 1, 1, dim=512)
    Order()(whole(images.vectors.requires_grad_()), whole(texts.vectors)).sum().backward()
    assert max(sizes) <= 1 << 18 and sum(sizes) == 2 * 50 * 60 * 512  # forward and backward


def test_it_says_what_it_is() -> None:
    assert not Order.indexable and not Order.is_cosine
