"""ESA's pooling against a loop written from its formula."""

from __future__ import annotations

import torch
from slow_loops import assert_equals_loop, ragged, softmax
from torch import Tensor

from openvse.aggregators import ExternalAttention


def slow_external_attention(pool: ExternalAttention, local: Tensor) -> Tensor:
    columns = []
    for dim, row in enumerate(pool.attention.weight):
        logits = [sum(w * x for w, x in zip(row, element, strict=True)) for element in local]
        columns.append(sum(w * x for w, x in zip(softmax(logits), local[:, dim], strict=True)))
    return torch.stack(columns).unsqueeze(0)


def test_equals_the_loop() -> None:
    pool = ExternalAttention(input_dim=4, embed_dim=4).double()
    assert_equals_loop(pool, lambda local, _: slow_external_attention(pool, local), ragged([3, 1, 5], 4))
