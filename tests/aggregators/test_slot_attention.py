"""DivE's slot attention against a loop written from its formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slow_loops import assert_equals_loop, ragged, softmax
from torch import Tensor

from openvse.aggregators import SlotAttention
from openvse.errors import ModelError, RecipeError
from openvse.types import Features
from tests.naming import names, refusal


def norm(layer: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.pow(2).mean() + layer.eps).sqrt() * layer.weight + layer.bias


def sines(place: int, count: int, width: int) -> Tensor:
    angle = 2 * math.pi * place / (count + 1e-6)
    waves = [angle / 10_000 ** (2 * (column // 2) / width) for column in range(width)]
    return torch.tensor(
        [math.cos(w) if column % 2 else math.sin(w) for column, w in enumerate(waves)], dtype=torch.float64
    )


def slow_read(net: SlotAttention, slots: list[Tensor], keys: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """Let the slots compete for each element, head by head."""
    queries = [net.query.weight @ norm(net.norm_slots, slot) for slot in slots]
    size = len(queries[0]) // net.num_heads
    heads: list[list[Tensor]] = [[] for _ in slots]
    for part in (slice(size * head, size * (head + 1)) for head in range(net.num_heads)):
        shares = [softmax([query[part] @ key[part] / size**0.5 for query in queries]) for key in keys]
        for number in range(len(slots)):
            total = sum(share[number] for share in shares) + 1e-7
            read = sum(share[number] / total * v[part] for share, v in zip(shares, values, strict=True))
            heads[number].append(read)
    return [net.update(torch.cat(each)) for each in heads]


def slow_slot_attention(net: SlotAttention, local: Tensor, pooled: Tensor) -> Tensor:
    whole = pooled if net.needs_pooled else torch.stack([column.max() for column in local.T])
    seen = [norm(net.norm_local, x) for x in local]
    placed = seen
    if net.order_aware:
        placed = [x + sines(n + 1, len(seen), local.shape[1]) for n, x in enumerate(seen)]
    keys, values = [net.key.weight @ x for x in placed], [net.value.weight @ x for x in seen]
    slots = list(net.slots)
    for _ in range(net.depth):
        slots = [slot + read for slot, read in zip(slots, slow_read(net, slots, keys, values), strict=True)]
        slots = [slot + net.feed_forward(slot) for slot in slots]
    return torch.stack([norm(net.norm_global, whole) + norm(net.norm, slot) for slot in slots])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("width", "options"),
    [
        (4, {"num_embeddings": 3, "depth": 2}),
        (4, {"num_embeddings": 1, "depth": 1}),
        (6, {"num_embeddings": 2, "depth": 2, "global_vector": "pooled", "positions": "sine"}),
    ],
)
def test_equals_the_loop(width: int, options: dict[str, Any]) -> None:
    net = SlotAttention(input_dim=width, embed_dim=4, num_heads=2, head_dim=3, **options).double().eval()
    features = ragged([3, 1, 5], width, pooled_dim=4)
    assert_equals_loop(net, lambda *item: slow_slot_attention(net, *item), features)


def test_the_residual_is_what_the_slots_add_and_the_weights_of_a_slot_sum_to_one() -> None:
    net = SlotAttention(input_dim=4, embed_dim=4, num_heads=2, head_dim=3).double().eval()
    features = ragged([3, 5], 4)
    made = net(features)
    assert made.residual is not None
    added = made.vectors - made.residual
    torch.testing.assert_close(added, added[:, :1].expand_as(added))  # the same global vector for all
    weights = net.attended(features)
    assert weights.shape == (2, 4, 5) and not weights[0, :, 3:].any()
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(2, 4).double(), rtol=0, atol=1e-6)


def test_what_cannot_be_is_refused() -> None:
    for name, value in {"num_embeddings": 0, "depth": 0, "dropout": 1.0}.items():
        assert names(refusal(RecipeError, SlotAttention, input_dim=4, embed_dim=4, **{name: value}), name)
    assert names(refusal(RecipeError, SlotAttention, input_dim=3, embed_dim=4), "global_vector: max")
    features = Features(torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool))
    part = SlotAttention(input_dim=3, embed_dim=4, global_vector="pooled")
    assert names(refusal(ModelError, part, features), "global_vector: pooled")
