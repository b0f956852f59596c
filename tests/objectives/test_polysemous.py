"""PVSE's terms against loops written from section 3.4."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from set_batches import embeddings, random_set_batch, scored
from torch import Tensor

from openvse.errors import RecipeError
from openvse.objectives import MMD, All, Contrast, Diversity, Hardest, Hinge
from openvse.types import EmbeddingSet, ScoredBatch

MARGIN = 0.1
KERNELS = ["rbf", "legacy_exp"]


def slow_mil(b: ScoredBatch, hardest: bool) -> Tensor:
    """The printed loss for as many images as texts, i = j left out, in both directions.

    The distance is 1 - cosine, and the mean goes over the negatives that there are: N (N - 1), or N if only the
    hardest of each anchor counts.
    """
    size = len(b.images)

    def distance(i: int, j: int) -> Tensor:
        pairs = [1 - v @ t for v in b.images.vectors[i] for t in b.texts.vectors[j]]
        return min(pairs, key=Tensor.item)

    total = torch.zeros((), dtype=torch.float64)
    for i in range(size):
        for others in ([(i, j) for j in range(size) if j != i], [(j, i) for j in range(size) if j != i]):
            costs = [(MARGIN - distance(*pair) + distance(i, i)).clamp(min=0) for pair in others]
            total = total + (max(costs, key=Tensor.item) if hardest else sum(costs) / len(costs)) / size
    return total


def slow_diversity(b: ScoredBatch) -> Tensor:
    """Equation 7, entry by entry."""
    total = torch.zeros((), dtype=torch.float64)
    for side in (b.images, b.texts):
        assert side.residual is not None
        for residuals in side.residual:
            k = len(residuals)
            squares = torch.zeros((), dtype=torch.float64)
            for i in range(k):
                for j in range(k):
                    cosine = residuals[i] @ residuals[j] / (residuals[i].norm() * residuals[j].norm())
                    squares = squares + (cosine - (1.0 if i == j else 0.0)) ** 2
            total = total + squares.sqrt() / k**2 / len(side)
    return total


def slow_mmd(b: ScoredBatch, kernel: str, gamma: float) -> float:
    def mean(left: EmbeddingSet, right: EmbeddingSet) -> float:
        values = []
        for x in left.vectors.flatten(0, 1).tolist():
            for y in right.vectors.flatten(0, 1).tolist():
                square = sum((a - c) ** 2 for a, c in zip(x, y, strict=True))
                values.append(math.exp(-gamma * (square if kernel == "rbf" else math.sqrt(square))))
        return sum(values) / len(values)

    return mean(b.images, b.images) - 2 * mean(b.images, b.texts) + mean(b.texts, b.texts)


def leaves(b: ScoredBatch) -> tuple[ScoredBatch, list[Tensor]]:
    """Return the same batch on vectors and residuals that want a gradient."""
    sides, wanted = [], []
    for side in (b.images, b.texts):
        assert side.residual is not None
        vectors, residual = (t.clone().requires_grad_() for t in (side.vectors, side.residual))
        sides.append(EmbeddingSet(vectors, side.mask, residual))
        wanted += [vectors, residual]
    return scored(*sides, b.positives), wanted


def assert_same_gradient(term: Tensor, slow: Tensor, wanted: list[Tensor]) -> None:
    if not slow.requires_grad:
        return
    ours = torch.autograd.grad(term, wanted, retain_graph=True, materialize_grads=True, allow_unused=True)
    theirs = torch.autograd.grad(slow, wanted, materialize_grads=True, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


class TestMIL:
    @settings(max_examples=20, deadline=None)
    @given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 999), st.booleans())
    def test_equals_the_loop(self, size: int, k: int, text_k: int, seed: int, hardest: bool) -> None:
        b, wanted = leaves(random_set_batch(size, size, k, seed, text_k))
        term = Contrast(
            miner=Hardest() if hardest else All(), criterion=Hinge(margin=MARGIN, reduction="mean"), reduction="mean"
        )
        slow = slow_mil(b, hardest)
        torch.testing.assert_close(term(b), slow, rtol=0, atol=1e-10)
        assert_same_gradient(term(b), slow, wanted)

    def test_one_embedding_a_side_is_the_triplet_loss(self) -> None:
        b = random_set_batch(6, 6, 1, seed=7)
        mil = Contrast(miner=Hardest(), criterion=Hinge(reduction="mean"), reduction="mean")
        triplet = Contrast(miner=Hardest(), criterion=Hinge())
        cosines = b.images.vectors[:, 0] @ b.texts.vectors[:, 0].T
        torch.testing.assert_close(
            mil(b), triplet(ScoredBatch(cosines, b.positives, b.images, b.texts)) / 6, rtol=0, atol=1e-12
        )

    def test_the_mean_over_an_anchor_without_negatives_is_zero(self) -> None:
        positives = torch.ones(2, 2, dtype=torch.bool)
        losses = Hinge(reduction="mean")(torch.rand(2, 2), positives, ~positives)
        assert losses.tolist() == [0.0] * 4


class TestDiversity:
    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 4), st.integers(2, 4), st.integers(0, 999))
    def test_equals_the_loop(self, images: int, texts: int, k: int, text_k: int, seed: int) -> None:
        b, wanted = leaves(random_set_batch(images, texts, k, seed, text_k))
        term, slow = Diversity()(b), slow_diversity(b)
        torch.testing.assert_close(term, slow, rtol=0, atol=1e-10)
        assert_same_gradient(term, slow, wanted)

    def test_orthogonal_residuals_cost_nothing_and_equal_ones_the_most(self) -> None:
        def side(residual: Tensor) -> EmbeddingSet:
            return EmbeddingSet(residual, torch.ones(residual.shape[:2], dtype=torch.bool), residual)

        apart = side(3 * torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
        together = side(torch.ones(2, 3, 3, dtype=torch.float64))
        none = embeddings(2, 1, 0, width=3)  # K = 1 adds nothing
        assert float(Diversity()(scored(apart, none))) == pytest.approx(0.0, abs=1e-12)
        assert float(Diversity()(scored(together, none))) == pytest.approx(math.sqrt(6) / 9)

    def test_one_embedding_costs_nothing_and_its_gradient_is_a_number(self) -> None:
        b, wanted = leaves(random_set_batch(3, 3, 1, seed=0))
        term = Diversity()(b)
        assert term.item() == pytest.approx(0.0, abs=1e-12)
        for gradient in torch.autograd.grad(term, wanted, allow_unused=True, materialize_grads=True):
            assert gradient.isfinite().all()

    def test_a_side_without_residuals_adds_nothing(self) -> None:
        images, texts = embeddings(3, 2, 0), embeddings(3, 1, 1)
        bare = EmbeddingSet(texts.vectors, texts.mask)
        b = scored(images, bare)
        assert set(Diversity().diagnostics(b)) == {"images"}
        torch.testing.assert_close(Diversity()(b), torch.tensor(Diversity().diagnostics(b)["images"]).double())

    def test_no_residuals_at_all_are_refused_in_one_line(self) -> None:
        bare = EmbeddingSet(torch.rand(2, 2, 3), torch.ones(2, 2, dtype=torch.bool))
        with pytest.raises(RecipeError, match="pie_net") as caught:
            Diversity()(scored(bare, bare))
        assert "\n" not in str(caught.value)


class TestMMD:
    @pytest.mark.parametrize("kernel", KERNELS)
    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 999))
    def test_equals_the_loop(self, kernel: str, images: int, texts: int, k: int, text_k: int, seed: int) -> None:
        b = random_set_batch(images, texts, k, seed, text_k)
        assert float(MMD(kernel=kernel, gamma=0.7)(b)) == pytest.approx(slow_mmd(b, kernel, 0.7), rel=0, abs=1e-10)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_gradient_equals_finite_differences(self, kernel: str) -> None:
        texts = embeddings(3, 2, 1)

        def value(vectors: Tensor) -> Tensor:
            return MMD(kernel=kernel)(scored(EmbeddingSet(vectors, texts.mask), texts))

        assert torch.autograd.gradcheck(value, embeddings(3, 2, 0).vectors.requires_grad_())

    @pytest.mark.parametrize("kernel", KERNELS)
    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 999))
    def test_is_zero_between_equal_sets_and_never_negative(self, kernel: str, items: int, k: int, seed: int) -> None:
        one, other = embeddings(items, k, seed), embeddings(items + 1, k, seed + 1)
        shuffled = one[torch.randperm(items, generator=torch.Generator().manual_seed(seed))]
        term = MMD(kernel=kernel)
        assert float(term(scored(one, shuffled))) == pytest.approx(0.0, abs=1e-10)
        assert float(term(scored(one, other))) >= -1e-12

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_embeddings_that_do_not_exist_do_not_count(self, kernel: str) -> None:
        images, texts = embeddings(3, 2, 0), embeddings(3, 1, 1)
        wider = EmbeddingSet(
            torch.cat([texts.vectors, torch.full_like(texts.vectors, 1e3)], dim=1),
            torch.tensor([[True, False]]).expand(3, 2),
        )
        term = MMD(kernel=kernel)
        torch.testing.assert_close(term(scored(images, wider)), term(scored(images, texts)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_equal_embeddings_have_a_gradient_of_zero(self, kernel: str, dtype: torch.dtype) -> None:
        texts = embeddings(8, 2, 0, width=64)
        vectors = texts.vectors.to(dtype).requires_grad_()
        value = MMD(kernel=kernel)(
            scored(EmbeddingSet(vectors, texts.mask), EmbeddingSet(vectors.detach(), texts.mask))
        )
        (gradient,) = torch.autograd.grad(value, vectors)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)

    def test_a_bandwidth_of_zero_is_refused(self) -> None:
        with pytest.raises(RecipeError, match="gamma.*0.0"):
            MMD(gamma=0.0)
