"""The nouns that rooms exchange."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openvse.runtime.arrays import ArraySet
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


def arrays(sets: EmbeddingSet) -> ArraySet:
    return ArraySet(sets.vectors.detach().numpy(), sets.mask.numpy())


@pytest.mark.parametrize("make", [lambda sets: sets, arrays])
def test_a_set_is_an_array(make) -> None:
    one = embeddings(3, 1)
    one.vectors.requires_grad_()
    assert np.array_equal(np.asarray(make(one)), one.vectors.detach()[:, 0].numpy())
    assert np.shares_memory(np.asarray(make(one)), one.vectors.detach().numpy())
    assert not np.shares_memory(np.array(make(one)), one.vectors.detach().numpy())
    assert np.asarray(make(one), dtype=np.float16).dtype == np.float16
    assert np.asarray(make(one[:0])).shape == (0, 4)
    several = EmbeddingSet.concatenate([embeddings(2, 3), embeddings(1, 2)])
    several.vectors[2, 2] = torch.nan  # does not exist
    found = np.asarray(make(several))
    assert found.shape == (3, 3, 4) and not found[2, 2].any()
    assert np.array_equal(found[:2], several.vectors[:2].numpy())


def test_half_precision_is_an_array_too() -> None:
    half = embeddings(2, 1).map(lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor)
    assert np.asarray(half).dtype == np.float32
