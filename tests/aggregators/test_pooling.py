"""Mean, max, k-max and GPO against loops written from the formulas, in float64."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loops import gru_step
from torch import Tensor

from openvse.aggregators import GPO, KMax, Max, Mean
from openvse.errors import RecipeError
from openvse.types import Features
from tests.naming import names, refusal


def ragged(lengths: list[int], width: int, seed: int = 0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    local = torch.randn(len(lengths), max(lengths), width, dtype=torch.float64, generator=generator)
    return Features(local, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1))


def ranked_values(features: Features, item: int, dim: int) -> list[float]:
    return sorted(features.local[item, features.mask[item], dim].tolist(), reverse=True)


def loop(features: Features, weights_of: dict[int, list[float]]) -> Tensor:
    """``sum_k theta_k max_k`` one value at a time; the weights are given by set size."""
    items, _, width = features.local.shape
    pooled = torch.zeros(items, width, dtype=torch.float64)
    for item in range(items):
        for dim in range(width):
            values = ranked_values(features, item, dim)
            pooled[item, dim] = sum(w * v for w, v in zip(weights_of[len(values)], values, strict=True))
    return pooled


lengths_of_a_batch = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@settings(max_examples=20, deadline=None)
@given(lengths_of_a_batch, st.integers(1, 6), st.integers(1, 15))
def test_poolings_equal_the_loop(lengths: list[int], width: int, k: int) -> None:
    features = ragged(lengths, width)
    sizes = range(1, 13)
    cases = [
        (Mean(input_dim=width, embed_dim=width), {n: [1 / n] * n for n in sizes}),
        (Max(input_dim=width, embed_dim=width), {n: [1.0] + [0.0] * (n - 1) for n in sizes}),
        (
            KMax(input_dim=width, embed_dim=width, k=k),
            {n: [1 / min(k, n)] * min(k, n) + [0.0] * (n - min(k, n)) for n in sizes},
        ),
    ]
    for pooling, weights in cases:
        torch.testing.assert_close(pooling(features).vectors[:, 0], loop(features, weights), rtol=0, atol=1e-10)


def slow_coefficients(gpo: GPO, size: int) -> list[float]:
    """Theta of one size from the paper: sinusoids, a GRU each way, mean, one linear map, softmax at 0.1."""
    weights = dict(gpo.generator.named_parameters())
    width, hidden = gpo.positions.position_dim, gpo.score.in_features
    inputs = []
    for position in range(size):
        angles = [position / 10000 ** (2 * (j // 2) / width) for j in range(width)]
        waves = [math.sin(a) if j % 2 == 0 else math.cos(a) for j, a in enumerate(angles)]
        inputs.append(torch.tensor(waves, dtype=torch.float64))
    states: dict[str, list[Tensor]] = {"": [], "_reverse": []}
    for suffix, order in (("", inputs), ("_reverse", inputs[::-1])):
        h = torch.zeros(hidden, dtype=torch.float64)
        for x in order:
            h = gru_step(weights, suffix, x, h)
            states[suffix].append(h)
    mean = [(f + b) / 2 for f, b in zip(states[""], states["_reverse"][::-1], strict=True)]
    logits = torch.stack([gpo.score.weight[0] @ state for state in mean]) / 0.1
    return (logits.exp() / logits.exp().sum()).tolist()


def test_gpo_equals_the_loop_forward_and_gradient() -> None:
    torch.manual_seed(0)
    gpo = GPO(input_dim=3, embed_dim=3).double()
    features = ragged([1, 4, 7, 4], 3)
    slow = {size: slow_coefficients(gpo, size) for size in (1, 4, 7)}
    local = features.local.clone().requires_grad_()
    pooled = gpo(Features(local, features.mask)).vectors[:, 0]
    torch.testing.assert_close(pooled, loop(features, slow), rtol=0, atol=1e-10)
    pooled.sum().backward()
    for item in range(4):
        for dim in range(3):
            values = features.local[item, features.mask[item], dim]
            expected = torch.tensor(slow[len(values)], dtype=torch.float64)[values.argsort(descending=True).argsort()]
            torch.testing.assert_close(local.grad[item, features.mask[item], dim], expected, rtol=0, atol=1e-10)


def test_gpo_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in GPO(input_dim=1024, embed_dim=1024).parameters()) == 12_704


def test_gpo_computes_coefficients_once_per_distinct_size(monkeypatch) -> None:
    gpo = GPO(input_dim=2, embed_dim=2).double()
    asked: list[list[int]] = []
    original = GPO.coefficients
    monkeypatch.setattr(GPO, "coefficients", lambda self, sizes: asked.append(sizes.tolist()) or original(self, sizes))
    gpo(ragged([4, 2, 4, 4, 2], 2))
    assert asked == [[2, 4]]
    with torch.no_grad():
        gpo(ragged([4, 2, 4], 2))
        gpo(ragged([4, 3], 2))
    assert asked[1:] == [[2], [4], [3]]  # the second call needs only the size that is new
    with torch.no_grad():
        gpo.score.weight.add_(1.0)
        gpo(ragged([4], 2))
    assert asked[4:] == [[4]]  # a changed weight empties the table


def test_gpo_sees_what_a_fused_optimizer_has_changed() -> None:
    gpo, features = GPO(input_dim=2, embed_dim=2), ragged([4, 2], 2)
    features = Features(features.local.float(), features.mask)
    optimizer = torch.optim.AdamW(gpo.parameters(), fused=True)
    for _ in range(2):
        with torch.no_grad():
            before = gpo(features).vectors
        gpo(features).vectors[0].sum().backward()
        optimizer.step()
        with torch.no_grad():
            after = gpo(features).vectors
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, gpo(features).vectors)


def test_gpo_works_under_bf16_autocast() -> None:
    torch.manual_seed(0)
    gpo, features = GPO(input_dim=16, embed_dim=16), ragged([5, 9], 16)
    single = Features(features.local.float(), features.mask)
    with torch.autocast("cpu", torch.bfloat16):
        low = gpo(Features(single.local.bfloat16(), single.mask)).vectors
    torch.testing.assert_close(low.float(), gpo(single).vectors, rtol=0.02, atol=0.02)


def test_wrong_options_are_refused() -> None:
    assert names(refusal(RecipeError, Mean, input_dim=4, embed_dim=8), "projection")
    assert names(refusal(RecipeError, KMax, input_dim=4, embed_dim=4, k=0), "k = 0")
