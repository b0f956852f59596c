"""What every registered similarity must hold."""

from __future__ import annotations

import pytest
import torch

from openvse.assembly import build_part
from openvse.functional import normalize
from openvse.similarities import SIMILARITIES, Similarity, score_blocks
from openvse.specs import Part
from openvse.types import EmbeddingSet

# Options without which a part does not fit the width of these embeddings.
OPTIONS = {"fused": {"fusion": {"name": "score_attention", "num_heads": 2}}}


def make(name: str) -> Similarity:
    torch.manual_seed(0)
    part = Part(name=name, **OPTIONS.get(name, {}))
    return build_part(SIMILARITIES, part, "similarity", {"embed_dim": 6}).double().eval()


def embeddings(items: int, k: int, seed: int, masked: bool = False) -> EmbeddingSet:
    generator = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(items, k, 6, dtype=torch.float64, generator=generator))
    mask = torch.ones(items, k, dtype=torch.bool)
    if masked:
        mask[:, 1:] = torch.rand(items, k - 1, generator=generator) > 0.5
    return EmbeddingSet(vectors, mask)


@pytest.mark.parametrize("name", SIMILARITIES)
class TestSimilarityContract:
    @pytest.mark.parametrize(("k_images", "k_texts"), [(1, 1), (3, 1), (3, 2)])
    @pytest.mark.parametrize("block_size", [1, 3, 100])
    def test_blocks_equal_the_full_matrix(
        self, name: str, k_images: int, k_texts: int, block_size: int
    ) -> None:
        similarity = make(name)
        images, texts = embeddings(7, k_images, 0, k_images > 1), embeddings(5, k_texts, 1, k_texts > 1)
        full = similarity(images, texts)
        assembled = torch.full_like(full, float("nan"))
        for rows, columns, scores in score_blocks(similarity, images, texts, block_size):
            assert scores.shape[0] <= block_size and scores.shape[1] <= block_size
            assembled[rows, columns] = scores
        torch.testing.assert_close(assembled, full, rtol=0, atol=1e-12)

    @pytest.mark.parametrize(("k_images", "k_texts"), [(1, 1), (3, 2)])
    def test_listed_pairs_equal_the_full_matrix(self, name: str, k_images: int, k_texts: int) -> None:
        similarity = make(name)
        images, texts = embeddings(7, k_images, 0, k_images > 1), embeddings(5, k_texts, 1, k_texts > 1)
        rows, columns = torch.tensor([0, 6, 3, 3, 6]), torch.tensor([4, 0, 1, 1, 2])
        scores = similarity.pairs(images, texts, rows, columns)
        torch.testing.assert_close(scores, similarity(images, texts)[rows, columns], rtol=0, atol=1e-12)
        assert similarity.pairs(images, texts, rows[:0], columns[:0]).shape == (0,)

    def test_one_embedding_a_side_is_the_cosine_unless_declared(self, name: str) -> None:
        images, texts = embeddings(4, 1, 0), embeddings(6, 1, 1)
        cosine = torch.nn.functional.cosine_similarity(images.vectors, texts.vectors.transpose(0, 1), dim=-1)
        similarity = make(name)
        assert torch.allclose(similarity(images, texts), cosine, rtol=0, atol=1e-12) is similarity.is_cosine
        assert similarity.is_cosine or not similarity.indexable

    def test_an_indexable_one_orders_as_the_largest_inner_product(self, name: str) -> None:
        similarity = make(name)
        images, texts = embeddings(30, 3, 0, masked=True), embeddings(5, 2, 1, masked=True)
        products = torch.einsum("ikd,tld->itkl", images.vectors, texts.vectors)
        exists = images.mask[:, None, :, None] & texts.mask[None, :, None, :]
        largest = products.masked_fill(~exists, float("-inf")).amax(dim=(2, 3))
        same = torch.equal(similarity(images, texts).argsort(dim=0), largest.argsort(dim=0))
        assert same or not similarity.indexable

    def test_a_masked_embedding_never_wins_even_if_all_scores_are_negative(self, name: str) -> None:
        axis = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
        away = torch.tensor([-0.6, -0.8, 0, 0, 0, 0], dtype=torch.float64)
        # The second embedding would score best, but is not there.
        several = EmbeddingSet(torch.stack([away, axis]).unsqueeze(0), torch.tensor([[True, False]]))
        alone = EmbeddingSet(away.view(1, 1, -1), torch.ones(1, 1, dtype=torch.bool))
        other = EmbeddingSet(axis.view(1, 1, -1), torch.ones(1, 1, dtype=torch.bool))
        similarity = make(name)
        below, above = similarity(alone, other).item(), similarity(other, alone).item()
        assert similarity(several, other).item() == pytest.approx(below, abs=1e-12)
        assert similarity(other, several).item() == pytest.approx(above, abs=1e-12)
        assert max(below, above) < 0 or not similarity.reads_unit_vectors

    def test_a_finite_gradient_reaches_both_sides(self, name: str) -> None:
        images, texts = embeddings(4, 2, 0), embeddings(3, 1, 1)
        sides = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]
        gradients = torch.autograd.grad(make(name)(images, texts).sum(), sides)
        assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)
