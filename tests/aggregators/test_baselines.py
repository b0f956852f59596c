"""The baselines that the papers compare with, each against a loop written from its formula.

DivE's slot attention against a loop written from its formulas.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loops import assert_equals_loop, gru_step, ragged, ranked, softmax
from torch import Tensor

from openvse.aggregators import (
    GCN,
    LIP,
    AdaPool,
    Aggregator,
    Conv1d,
    FirstToken,
    FSPool,
    GeM,
    LogSumExp,
    Max,
    SelfAttention,
    Seq2Seq,
    SlotAttention,
    SoftPool,
    TopPercent,
)
from openvse.errors import ModelError, RecipeError
from openvse.types import Features
from tests.failures import Failures
from tests.naming import names, refusal


def by_dimension(pool_column, local: Tensor) -> Tensor:
    """Pool each dimension alone, from its list of numbers."""
    return torch.stack([pool_column(list(local[:, dim])) for dim in range(local.shape[1])])


def weighted(weights: list[Tensor], vectors: list[Tensor] | Tensor) -> Tensor:
    return sum(w * v for w, v in zip(weights, vectors, strict=True))


def linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    bias = 0 if layer.bias is None else layer.bias
    return torch.stack([sum(w * v for w, v in zip(row, x, strict=True)) for row in layer.weight]) + bias


def slow_top_percent(pool: TopPercent, local: Tensor) -> Tensor:
    count = math.ceil(len(local) * pool.percent / 100)
    return sum(ranked(local)[:count]) / count


def slow_log_sum_exp(pool: LogSumExp, local: Tensor) -> Tensor:
    return by_dimension(
        lambda column: pool.temperature * sum((x / pool.temperature).exp() for x in column).log(), local
    )


def slow_gem(pool: GeM, local: Tensor) -> Tensor:
    p = pool.log_exponent.exp()
    return by_dimension(
        lambda column: (sum(x.clamp(min=pool.eps) ** p for x in column) / len(column)) ** (1 / p), local
    )


def slow_soft_pool(_: SoftPool | AdaPool, local: Tensor) -> Tensor:
    return by_dimension(lambda column: weighted(softmax(column), column), local)


def slow_ada_pool(pool: AdaPool, local: Tensor) -> Tensor:
    mean = sum(local) / len(local)
    likeness = [2 * (mean @ x).abs() / (mean @ mean + x @ x) for x in local]
    share = 1 / (1 + (-pool.mix).exp())
    return share * weighted(softmax(likeness), local) + (1 - share) * slow_soft_pool(pool, local)


def slow_lip(pool: LIP, local: Tensor) -> Tensor:
    raw = torch.stack([linear(pool.importance, x) for x in local])
    pooled = []
    for dim in range(local.shape[1]):
        column = raw[:, dim]
        mean = sum(column) / len(column)
        deviation = (sum((x - mean) ** 2 for x in column) / len(column) + 1e-5).sqrt()
        gates = [12 * torch.sigmoid(pool.scale[dim] * (x - mean) / deviation + pool.shift[dim]) for x in column]
        pooled.append(weighted(softmax(gates), local[:, dim]))
    return torch.stack(pooled)


def slow_fs_pool(pool: FSPool, local: Tensor) -> Tensor:
    pieces = len(pool.knots) - 1
    total = torch.zeros(local.shape[1], dtype=torch.float64)
    for place, row in enumerate(ranked(local)):
        at = pieces * (place / (len(local) - 1) if len(local) > 1 else 0.0)
        # Each knot's hat function is 1 on the knot and falls to 0 at its neighbours.
        hats = [max(0.0, 1 - abs(at - knot)) for knot in range(pieces + 1)]
        total = total + weighted(hats, pool.knots) * row
    return total


def slow_conv1d(pool: Conv1d, local: Tensor) -> Tensor:
    return sum(x @ matrix for x, matrix in zip(local, pool.kernel, strict=False)) + pool.bias


def slow_self_attention(pool: SelfAttention, local: Tensor) -> Tensor:
    queries, keys, values = ([linear(layer, x) for x in local] for layer in (pool.query, pool.key, pool.value))
    scale = math.sqrt(local.shape[1])
    read = [weighted(softmax([q @ k / scale for k in keys]), values) for q in queries]
    return sum(pool.norm(x + r) for x, r in zip(local, read, strict=True)) / len(local)


def slow_seq2seq(pool: Seq2Seq, local: Tensor) -> Tensor:
    w = dict(pool.gru.named_parameters())
    h = torch.zeros(pool.gru.hidden_size, dtype=torch.float64)
    for x in local:
        h = gru_step(w, "", x, h)
    return h


def slow_gcn(net: GCN, local: Tensor) -> Tensor:
    for layer in net.layers:
        sent = []
        for x in local:
            affinities = [linear(layer.row, x) @ linear(layer.column, y) / len(local) for y in local]
            sent.append(weighted(affinities, [linear(layer.message, y) for y in local]))
        local = torch.stack([x + layer.norm(linear(layer.update, s)) for x, s in zip(local, sent, strict=True)])
    if isinstance(net.aggregator, Seq2Seq):
        return slow_seq2seq(net.aggregator, local)
    return sum(local) / len(local)


CASES = [
    *[(TopPercent, {"percent": percent}, slow_top_percent) for percent in (1, 25, 30, 100)],
    (LogSumExp, {"temperature": 0.5}, slow_log_sum_exp),
    *[(GeM, {"exponent": exponent, "eps": 0.1}, slow_gem) for exponent in (1.0, 2.5)],
    (SoftPool, {}, slow_soft_pool),
    (AdaPool, {}, slow_ada_pool),
    (LIP, {}, slow_lip),
    (FSPool, {"num_pieces": 3}, slow_fs_pool),
    (FirstToken, {}, lambda _, local: local[0]),
    (Conv1d, {"length": 4}, slow_conv1d),
    (SelfAttention, {}, slow_self_attention),
    (SelfAttention, {"layer_norm": True}, slow_self_attention),
    (Seq2Seq, {}, slow_seq2seq),
    (GCN, {}, slow_gcn),
    (GCN, {"aggregator": Seq2Seq, "num_layers": 2}, slow_gcn),
]


def test_normalised_graph_convolutions_begin_as_the_identity_and_equal_the_loop() -> None:
    torch.manual_seed(0)
    net = GCN(input_dim=4, embed_dim=4, num_layers=4, layer_norm=True).double()
    features = ragged([3, 5], 4)
    assert torch.equal(net(features).vectors, net.aggregator(features).vectors)
    large = Features(features.local.float() * 1e4, features.mask)
    for layer in net.layers:
        torch.nn.init.normal_(layer.norm.weight)
    assert net.float()(large).vectors.isfinite().all()
    net.double()
    assert_equals_loop(net, lambda local, _: slow_gcn(net, local).unsqueeze(0), features)


@pytest.mark.medium
def test_baseline_equals_the_loop(failures: Failures) -> None:
    for kind, options, slow in CASES:
        with failures.of(kind, options, slow):
            for seed, lengths in enumerate([[1], [2, 6, 1], [5, 5, 3, 7]]):
                torch.manual_seed(seed)
                pool = kind(input_dim=4, embed_dim=4, **options).double()
                assert_equals_loop(
                    pool,
                    lambda local, _, pool=pool, slow=slow: slow(pool, local).unsqueeze(0),
                    ragged(lengths, 4, seed),
                )


def test_a_cold_log_sum_exp_is_the_maximum() -> None:
    features, widths = ragged([3, 9, 1], 4), {"input_dim": 4, "embed_dim": 4}
    cold, largest = LogSumExp(**widths, temperature=1e-4), Max(**widths)
    torch.testing.assert_close(cold(features).vectors, largest(features).vectors, atol=1e-3, rtol=0)


@pytest.mark.parametrize("exponent", [0.1, 3.0, 300.0])
def test_gem_is_finite_on_negative_and_huge_features(exponent: float) -> None:
    pool = GeM(input_dim=3, embed_dim=3, exponent=exponent)
    local = torch.tensor([[[-5.0, 1e30, 1e-30], [-1e30, 1e30, 0.0]]], requires_grad=True)
    pooled = pool(Features(local, torch.ones(1, 2, dtype=torch.bool))).vectors
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert local.grad.isfinite().all() and pool.log_exponent.grad.isfinite()


def test_ada_pool_is_finite_on_zeros() -> None:
    local = torch.zeros(1, 2, 3, requires_grad=True)
    pooled = AdaPool(input_dim=3, embed_dim=3)(Features(local, torch.ones(1, 2, dtype=torch.bool))).vectors
    pooled.sum().backward()
    assert (pooled == 0).all() and local.grad.isfinite().all()


def test_holes_of_size_augmentation_are_skipped() -> None:
    local = torch.randn(1, 4, 3)
    holes = Features(local, torch.tensor([[False, True, False, True]]))
    without = Features(local[:, [1, 3]], torch.ones(1, 2, dtype=torch.bool))
    for pool in (FirstToken(input_dim=3, embed_dim=3), Seq2Seq(input_dim=3, embed_dim=5)):
        assert torch.equal(pool(holes).vectors, pool(without).vectors)


def test_conv1d_does_not_read_beyond_its_kernel() -> None:
    pool = Conv1d(input_dim=3, embed_dim=5, length=2).double()
    features = ragged([4], 3)
    short = Features(features.local[:, :2], features.mask[:, :2])
    assert pool(features).vectors.shape == (1, 1, 5)
    torch.testing.assert_close(pool(features).vectors, pool(short).vectors)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (TopPercent, "percent", 0),
        (TopPercent, "percent", 101),
        (LogSumExp, "temperature", 0.0),
        (GeM, "exponent", 0.0),
        (FSPool, "num_pieces", 0),
        (Conv1d, "length", 0),
        (GCN, "num_layers", 0),
    ],
)
def test_options_out_of_range_are_refused(kind: type[Aggregator], name: str, value: float) -> None:
    assert names(refusal(RecipeError, kind, input_dim=4, embed_dim=4, **{name: value}), name, value)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True), st.integers(1, 6), st.integers(1, 3))
def test_interpolation_equals_numpy(sizes: list[int], knots: int, width: int) -> None:
    import numpy as np

    from openvse.functional import interpolate

    values = torch.randn(knots, width, dtype=torch.float64)
    stretched = interpolate(values, torch.tensor(sizes))
    assert stretched.shape == (len(sizes), max(sizes), width)
    for row, size in zip(stretched, sizes, strict=True):
        places = np.linspace(0, knots - 1, size) if size > 1 else np.zeros(1)
        for dim in range(width):
            expected = np.interp(places, np.arange(knots), values[:, dim].numpy())
            np.testing.assert_allclose(row[:size, dim].numpy(), expected, rtol=0, atol=1e-12)


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
