"""What every registered term of an objective must hold."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor

from openvse.functional import normalize, set_max_scores
from openvse.objectives import TERMS, Hardest, Hinge, Objective, Term
from openvse.types import EmbeddingSet, ScoredBatch


def make(name: str) -> Term:
    """Construct a term; what it needs besides its defaults is a miner and a criterion."""
    factory = TERMS.get(name)
    offered = {"miner": Hardest(), "criterion": Hinge(margin=1.5)}
    needed = inspect.signature(factory).parameters
    return factory(**{key: part for key, part in offered.items() if key in needed})


def raw_vectors(images: int = 4, texts: int = 6, k: int = 3, seed: int = 0) -> list[Tensor]:
    """Return unnormalised vectors and residuals of images (K = k) and of texts (K = 2)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(images, k, 5), (images, k, 5), (texts, 2, 5), (texts, 2, 5)]
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def batch(raw: list[Tensor], text_mask: Tensor | None = None) -> ScoredBatch:
    """Score with set_max; the i-th text belongs to the i-th image, modulo their number."""
    images = EmbeddingSet(normalize(raw[0]), torch.ones(raw[0].shape[:2], dtype=torch.bool), raw[1])
    mask = torch.ones(raw[2].shape[:2], dtype=torch.bool) if text_mask is None else text_mask
    texts = EmbeddingSet(normalize(raw[2]), mask, raw[3])
    owners = torch.arange(len(texts)) % len(images)
    positives = owners == torch.arange(len(images)).unsqueeze(1)
    return ScoredBatch(set_max_scores(images, texts), positives, images, texts)


@pytest.mark.parametrize("name", TERMS)
class TestTermContract:
    def test_a_finite_number_with_a_finite_gradient_for_both_sides(self, name: str) -> None:
        raw = [tensor.requires_grad_() for tensor in raw_vectors()]
        value = make(name)(batch(raw))
        assert value.shape == () and value.isfinite()
        gradients = torch.autograd.grad(value, raw, allow_unused=True, materialize_grads=True)
        assert all(gradient.isfinite().all() for gradient in gradients)
        for side in (gradients[:2], gradients[2:]):
            assert any(gradient.abs().max() > 0 for gradient in side)

    def test_one_pair_alone_is_harmless(self, name: str) -> None:
        raw = [tensor.requires_grad_() for tensor in raw_vectors(1, 1, 1)]
        value = make(name)(batch(raw))
        assert value.isfinite()
        gradients = torch.autograd.grad(value, raw, allow_unused=True, materialize_grads=True)
        assert all(gradient.isfinite().all() for gradient in gradients)

    def test_the_order_within_the_batch_does_not_matter(self, name: str) -> None:
        term, b = make(name), batch(raw_vectors())
        rows, columns = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 1, 0, 4, 2, 3])
        shuffled = ScoredBatch(
            b.scores[rows][:, columns], b.positives[rows][:, columns], b.images[rows], b.texts[columns]
        )
        torch.testing.assert_close(term(shuffled), term(b), rtol=0, atol=1e-12)

    def test_embeddings_that_do_not_exist_change_nothing(self, name: str) -> None:
        term, raw = make(name), raw_vectors()
        mask = torch.tensor([[True, False]]).expand(6, 2)
        garbage = [*raw[:2], *(t.masked_fill(~mask.unsqueeze(-1), 7.0) for t in raw[2:])]
        alone = [*raw[:2], *(t[:, :1] for t in raw[2:])]
        for other in (garbage, alone):
            expected = term(batch(other, mask[:, : other[2].shape[1]]))
            torch.testing.assert_close(term(batch(raw, mask)), expected, rtol=0, atol=1e-12)

    def test_diagnostics_are_finite_numbers_and_leave_the_batch_alone(self, name: str) -> None:
        term, b = make(name), batch(raw_vectors())
        before = term(b)
        report = Objective({"it": term}, {"it": 1.0}).diagnostics(b)
        assert all(key.startswith("it.") and math.isfinite(value) for key, value in report.items())
        assert all(isinstance(value, float) for value in report.values())
        torch.testing.assert_close(term(b), before, rtol=0, atol=0)

    def test_the_collapsed_value_is_a_number(self, name: str) -> None:
        assert math.isfinite(Objective({"it": make(name)}, {"it": 1.0}).at_collapse(batch(raw_vectors())))
