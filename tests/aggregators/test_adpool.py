"""AdPool against VSE+2AD's equations 3 to 5."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loops import assert_equals_loop, ragged, ranked, softmax
from torch import Tensor

from openvse.aggregators import AdPool
from openvse.types import Features


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
            logits = [
                (sum(weight[d, e] * row[e] for e in range(width)) + bias[d]).clamp(min=0) for row in rows
            ]
            token.append(sum(t * row[d] for t, row in zip(softmax(logits), rows, strict=True)))
    embedding = []
    for d in range(width):
        values = [x[d] for x in local]
        embedding.append(sum(w * v for w, v in zip(softmax(values), values, strict=True)))
    balance = pool.balance.weight[0]
    w1, w2 = softmax([sum(balance[d] * side[d] for d in range(width)) for side in (token, embedding)])
    return torch.stack([w1 * t + w2 * e for t, e in zip(token, embedding, strict=True)]).unsqueeze(0)


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


def test_the_released_pooling_sees_padding_and_no_index_may_hold_it() -> None:
    torch.manual_seed(0)
    features = ragged([2, 4], 3)
    masked = AdPool(input_dim=3, embed_dim=3).double()
    counting = AdPool(input_dim=3, embed_dim=3, count_padding=True).double()
    counting.load_state_dict(masked.state_dict())
    assert masked.indexable and not counting.indexable
    zeros = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
    everything = Features(zeros, torch.ones_like(features.mask))
    torch.testing.assert_close(counting(features).vectors, masked(everything).vectors)
    assert not torch.allclose(counting(features).vectors[0], masked(features).vectors[0])


def test_an_item_of_one_element_is_that_element() -> None:
    features = ragged([1], 4)
    torch.testing.assert_close(
        AdPool(input_dim=4, embed_dim=4).double()(features).vectors[:, 0], features.local[:, 0]
    )
