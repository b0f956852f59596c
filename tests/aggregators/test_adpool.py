"""AdPool against VSE+2AD's equations 3 to 5."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loops import assert_equals_loop, ragged, ranked, softmax
from torch import Tensor

from openvse.aggregators import AdPool


def slow_adpool(pool: AdPool, local: Tensor) -> Tensor:
    width = local.shape[1]
    rows = ranked(local)
    if isinstance(pool.token, torch.nn.Linear):
        theta = softmax([sum(pool.token.weight[0, d] * row[d] for d in range(width)) for row in rows])
        token = [sum(t * row[d] for t, row in zip(theta, rows, strict=True)) for d in range(width)]
    else:
        weight, bias = pool.token[0].weight, pool.token[0].bias
        token = []
        for d in range(width):
            logits = [(sum(weight[d, e] * row[e] for e in range(width)) + bias[d]).clamp(min=0) for row in rows]
            token.append(sum(t * row[d] for t, row in zip(softmax(logits), rows, strict=True)))
    embedding = []
    for d in range(width):
        values = [x[d] for x in local]
        embedding.append(sum(w * v for w, v in zip(softmax(values), values, strict=True)))
    balance = pool.balance.weight[0]
    w1, w2 = softmax([sum(balance[d] * side[d] for d in range(width)) for side in (token, embedding)])
    return torch.stack([w1 * t + w2 * e for t, e in zip(token, embedding, strict=True)]).unsqueeze(0)


@pytest.mark.medium
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(["scalar", "per_dimension"]),
    st.integers(0, 99),
)
def test_adpool_equals_the_loop(lengths: list[int], width: int, token_weights: str, seed: int) -> None:
    torch.manual_seed(seed)
    pool = AdPool(input_dim=width, embed_dim=width, token_weights=token_weights).double()
    assert_equals_loop(pool, lambda local, _: slow_adpool(pool, local), ragged(lengths, width, seed))


@pytest.mark.parametrize("token_weights", ["scalar", "per_dimension"])
def test_the_released_pooling_counts_padding_in_its_token_weights(token_weights: str) -> None:
    """Padding stands behind the sorted elements as zeros and takes a share of theta; eq. 4 does not see it."""
    torch.manual_seed(0)
    features = ragged([2, 4], 3)
    masked = AdPool(input_dim=3, embed_dim=3, token_weights=token_weights).double()
    counting = AdPool(input_dim=3, embed_dim=3, token_weights=token_weights, count_padding=True).double()
    counting.load_state_dict(masked.state_dict())
    assert masked.indexable and not counting.indexable
    local = features.local[0, :2]
    rows = torch.cat((local.sort(dim=0, descending=True).values, torch.zeros(2, 3)))
    theta = masked.token(rows).softmax(dim=0)
    token, embedding = (theta * rows).sum(dim=0), (local.softmax(dim=0) * local).sum(dim=0)
    weights = masked.balance(torch.stack((token, embedding))).softmax(dim=0)
    expected = weights[0] * token + weights[1] * embedding
    torch.testing.assert_close(counting(features).vectors[0, 0], expected)
    assert not torch.allclose(counting(features).vectors[0], masked(features).vectors[0])
    torch.testing.assert_close(counting(features).vectors[1], masked(features).vectors[1])


@pytest.mark.parametrize(("token_weights", "outputs"), [("scalar", 1), ("per_dimension", 600)])
def test_the_token_weights_start_as_pytorch_starts_them_or_as_released(token_weights: str, outputs: int) -> None:
    bounds = {"uniform": 600**-0.5, "xavier": (6 / (600 + outputs)) ** 0.5}
    for start, bound in bounds.items():
        torch.manual_seed(0)
        pool = AdPool(input_dim=600, embed_dim=600, token_weights=token_weights, token_start=start)
        layer = pool.token if token_weights == "scalar" else pool.token[0]
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        if token_weights == "per_dimension":
            assert bool(layer.bias.any()) is (start == "uniform")
