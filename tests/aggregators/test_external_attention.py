"""ESA's pooling against a loop written from its formula."""

from __future__ import annotations

import torch
from slow_loops import assert_equals_loop, ragged, softmax
from torch import Tensor

from openvse.aggregators import ExternalAttention, SoftPool


def slow_external_attention(pool: ExternalAttention, local: Tensor) -> Tensor:
    columns = []
    for dim, row in enumerate(pool.attention.weight):
        logits = [sum(w * x for w, x in zip(row, element, strict=True)) for element in local]
        columns.append(sum(w * x for w, x in zip(softmax(logits), local[:, dim], strict=True)))
    return torch.stack(columns).unsqueeze(0)


def test_equals_the_loop() -> None:
    pool = ExternalAttention(input_dim=4, embed_dim=4).double()
    assert_equals_loop(pool, lambda local, _: slow_external_attention(pool, local), ragged([3, 1, 5], 4))


def test_the_identity_is_soft_pool() -> None:
    pool, features = ExternalAttention(input_dim=4, embed_dim=4).double(), ragged([3, 1, 5], 4)
    torch.nn.init.eye_(pool.attention.weight)
    expected = SoftPool(input_dim=4, embed_dim=4)(features).vectors
    torch.testing.assert_close(pool(features).vectors, expected, rtol=0, atol=1e-12)
