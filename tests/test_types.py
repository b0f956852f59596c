"""The nouns that rooms exchange."""

from __future__ import annotations

import torch

from openvse.types import EmbeddingSet


def embeddings(items: int, k: int, *, residual: bool = False) -> EmbeddingSet:
    vectors = torch.randn(items, k, 4)
    return EmbeddingSet(vectors, torch.ones(items, k, dtype=torch.bool), vectors * 2 if residual else None)


def test_concatenation_pads_the_smaller_k() -> None:
    narrow, wide = embeddings(2, 1), embeddings(1, 3)
    joined = EmbeddingSet.concatenate([narrow, wide])
    assert joined.vectors.shape == (3, 3, 4)
    assert joined.mask.tolist() == [[True, False, False], [True, False, False], [True, True, True]]
    assert torch.equal(joined.vectors[:2, :1], narrow.vectors)
    assert joined.residual is None


def test_the_residual_stays_when_every_part_has_one() -> None:
    parts = [embeddings(2, 2, residual=True), embeddings(3, 2, residual=True)]
    joined = EmbeddingSet.concatenate(parts)
    assert joined.residual is not None and torch.equal(joined.residual, joined.vectors * 2)
    assert EmbeddingSet.concatenate([parts[0], embeddings(1, 2)]).residual is None


def test_a_slice_is_a_view_and_positions_choose() -> None:
    whole = embeddings(5, 2, residual=True)
    view = whole[1:3]
    assert view.vectors.data_ptr() == whole.vectors[1:].data_ptr()
    chosen = whole[torch.tensor([4, 0])]
    assert torch.equal(chosen.vectors, whole.vectors[[4, 0]])
    assert chosen.residual is not None and torch.equal(chosen.residual, whole.vectors[[4, 0]] * 2)
    assert len(chosen) == 2
