"""pooled_linear is a linear map of a pooled item of length 1, and nothing more."""

from __future__ import annotations

import pytest
import torch

from openvse.aggregators import GPO, PIENet, PooledLinear, Tokens
from openvse.aggregators.simple import KMax
from openvse.errors import RecipeError
from openvse.registry import Maker
from openvse.types import Features
from tests.naming import names, refusal


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_it_equals_a_slow_loop(power: float) -> None:
    torch.manual_seed(0)
    part = PooledLinear(input_dim=5, embed_dim=3, pool=lambda **widths: KMax(**widths, k=2), power=power)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    features = Features(torch.randn(2, 3, 5), mask)
    features.local[0, :, 0] = 0.0  # as behind a ReLU: a network below the part must still get a gradient
    features.local.requires_grad_()
    vectors = part(features).vectors[:, 0]
    for item in range(2):
        real = features.local[item][mask[item]]
        real = real.sign() * real.abs().pow(power)
        largest = torch.stack([column.sort(descending=True).values[:2].mean() for column in real.T])
        expected = part.linear.weight @ (largest / largest.norm()) + part.linear.bias
        torch.testing.assert_close(vectors[item], expected)
    vectors.sum().backward()
    assert features.local.grad is not None
    assert features.local.grad.isfinite().all()


@pytest.mark.parametrize("pool", [PIENet, Tokens])
def test_a_pool_of_several_vectors_is_refused(pool: Maker[PIENet]) -> None:
    assert names(refusal(RecipeError, PooledLinear, input_dim=4, embed_dim=4, pool=pool), "pooled_linear")


def test_a_power_of_zero_is_refused() -> None:
    assert names(refusal(RecipeError, PooledLinear, input_dim=4, embed_dim=4, pool=GPO, power=0.0), "power")
