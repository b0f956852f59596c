"""PIE-Net against PVSE's equations 2 to 4."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loops import assert_equals_loop, ragged, softmax
from torch import Tensor

from openvse.aggregators import PIENet


def slow_residual(net: PIENet, local: Tensor, head: int) -> Tensor:
    logits = []
    for x in local:
        hidden = [torch.tanh(sum(w * v for w, v in zip(row, x, strict=True))) for row in net.hidden.weight]
        logits.append(sum(w * h for w, h in zip(net.heads.weight[head], hidden, strict=True)))
    attended = sum(a * x for a, x in zip(softmax(logits), local, strict=True))
    return 1 / (1 + (-(net.residual.weight @ attended + net.residual.bias)).exp())


def slow_pie_net(net: PIENet, local: Tensor, pooled: Tensor) -> Tensor:
    rows = []
    for head in range(net.heads.out_features):
        joined = pooled + slow_residual(net, local, head)
        centred = joined - joined.mean()
        scaled = centred / (centred.pow(2).mean() + net.norm.eps).sqrt()
        rows.append(scaled * net.norm.weight + net.norm.bias)
    return torch.stack(rows)


@pytest.mark.medium
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_pie_net_equals_the_loop(lengths: list[int], width: int, embed_dim: int, heads: int, seed: int) -> None:
    torch.manual_seed(seed)
    net = PIENet(input_dim=width, embed_dim=embed_dim, num_embeddings=heads).double()
    features = ragged(lengths, width, seed, pooled_dim=embed_dim)
    assert_equals_loop(net, lambda *item: slow_pie_net(net, *item), features)


def test_the_residual_is_what_the_loop_adds() -> None:
    torch.manual_seed(0)
    net, features = PIENet(input_dim=3, embed_dim=4).double(), ragged([2, 5], 3, pooled_dim=4)
    residual = net(features).residual
    for item in range(2):
        for head in range(2):
            slow = slow_residual(net, features.local[item, features.mask[item]], head)
            torch.testing.assert_close(residual[item, head], slow, rtol=0, atol=1e-10)
