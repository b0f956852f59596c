"""Attention pooling with a learned query, against the formula one item and head at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from openvse.aggregators import MapHead
from openvse.errors import RecipeError
from openvse.types import Features
from tests.naming import names, refusal


def slow(head: MapHead, item: torch.Tensor, heads: int, approximate: str) -> torch.Tensor:
    """``z + MLP(LN(z))`` of one item ``[N, L]``."""
    weight, bias = head.attention.in_proj_weight, head.attention.in_proj_bias
    query, key, value = (
        rows @ part.T + shift
        for rows, part, shift in zip((head.probe[0], item, item), weight.chunk(3), bias.chunk(3), strict=True)
    )
    read = []
    for q, k, v in zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1), strict=True):
        weights = (q @ k.T / math.sqrt(q.shape[1])).softmax(dim=1)
        read.append(weights @ v)
    z = head.attention.out_proj(torch.cat(read, dim=1))[0]
    normed = (z - z.mean()) / (z.var(unbiased=False) + 1e-6).sqrt() * head.layernorm.weight + head.layernorm.bias
    hidden = F.gelu(head.mlp["fc1"](normed), approximate=approximate)
    return z + head.mlp["fc2"](hidden)


@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu_tanh", "tanh")])
def test_it_is_the_formula(activation: str, approximate: str) -> None:
    torch.manual_seed(0)
    head = MapHead(input_dim=12, embed_dim=12, num_heads=3, hidden_dim=20, activation=activation).double().eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    local = torch.randn(3, 5, 12, dtype=torch.float64)
    lengths = [5, 1, 3]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    pooled = head(Features(local, mask)).vectors[:, 0]
    for row, length in enumerate(lengths):
        torch.testing.assert_close(pooled[row], slow(head, local[row, :length], 3, approximate))


def test_there_is_a_head_for_each_64_dimensions() -> None:
    assert MapHead(input_dim=128, embed_dim=128).attention.num_heads == 2
    assert MapHead(input_dim=8, embed_dim=8).attention.num_heads == 1
    assert names(refusal(RecipeError, MapHead, input_dim=8, embed_dim=8, num_heads=3), "num_heads", 3)
