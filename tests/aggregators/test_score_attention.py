"""Score attention of one modality, and the aggregator that keeps all tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aggregators.slow_loops import assert_equals_loop, ragged
from fusion.slow_loop import read_one, scores_one
from openvse.aggregators import ScoreAttention, Tokens
from openvse.errors import RecipeError
from tests.naming import names, refusal


@pytest.mark.parametrize("num_vectors", [1, 2])
def test_score_attention_equals_the_loop(num_vectors: int) -> None:
    torch.manual_seed(0)
    aggregator = ScoreAttention(input_dim=4, embed_dim=4, num_heads=2, num_vectors=num_vectors).double()

    def loop(local: Tensor, pooled: Tensor) -> Tensor:
        read = read_one(aggregator.attention, local, local)
        weights = scores_one(aggregator.scores, read, read)
        return torch.stack([sum(w * x for w, x in zip(of_k, read, strict=True)) for of_k in weights])

    assert_equals_loop(aggregator, loop, ragged([3, 1, 4], 4))


@pytest.mark.parametrize("unit_length", [False, True])
def test_tokens_are_the_local_features(unit_length: bool) -> None:
    features = ragged([3, 1], 4)
    aggregator = Tokens(input_dim=4, embed_dim=4, unit_length=unit_length)
    embedded = aggregator(features)
    assert torch.equal(embedded.mask, features.mask)
    assert torch.equal(embedded.vectors[features.mask], features.local[features.mask])
    assert (embedded.vectors[~features.mask] == 0).all()
    assert aggregator.unit_length is unit_length


@pytest.mark.parametrize("kind", [Tokens, ScoreAttention])
def test_another_width_is_refused(kind: type[Tokens | ScoreAttention]) -> None:
    assert names(refusal(RecipeError, kind, input_dim=5, embed_dim=8), 5, 8)
