"""An aggregator in somebody's own module: tensors in, a tensor out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import openvse
from openvse.aggregators import AGGREGATORS, GPO, MultiView, PIENet
from openvse.errors import DataError, RecipeError
from openvse.types import Features
from tests.failures import Failures
from tests.naming import names, refusal

MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])


def local(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(seed))


def test_it_computes_what_the_aggregator_computes(failures: Failures) -> None:
    for name in AGGREGATORS:
        with failures.of(name):
            pool, whole = openvse.pooling(name, dim=8).eval(), torch.randn(2, 8)
            expected = pool.aggregator(Features(local(), MASK, whole))
            pooled = pool(local(), MASK, whole if pool.aggregator.needs_pooled else None)
            if pooled.dim() == 2:
                pooled = pooled.unsqueeze(1)
            assert torch.equal(pooled[expected.mask], expected.vectors[expected.mask])
            assert (pooled[~expected.mask] == 0).all()


def test_one_embedding_is_a_row_and_several_are_a_matrix() -> None:
    assert openvse.pooling("gpo", dim=8)(local(), MASK).shape == (2, 8)
    views = {"name": "multi_view", "num_views": 3, "aggregator": "gpo"}
    assert openvse.pooling(views, dim=8)(local(), MASK).shape == (2, 3, 8)
    assert openvse.Pool(MultiView(input_dim=8, embed_dim=8, num_views=1))(local()).shape == (2, 8)
    assert openvse.pooling("tokens", dim=8)(local()[:, :1], MASK[:, :1]).shape == (2, 1, 8)
    assert openvse.pooling("conv1d", dim=8, out_dim=5)(local(), MASK).shape == (2, 5)


def test_without_a_mask_every_element_is_real() -> None:
    pool = openvse.pooling({"name": "k_max", "k": 2}, dim=8)
    torch.testing.assert_close(pool(local()), local().topk(2, dim=1).values.mean(dim=1))


def test_an_attention_mask_of_integers_is_a_mask() -> None:
    pool = openvse.pooling("mean", dim=8)
    assert torch.equal(pool(local(), MASK.long()), pool(local(), MASK))


def test_it_is_an_ordinary_module() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 6)
            self.pool = openvse.Pool(GPO(input_dim=6, embed_dim=6))

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.pool(self.project(x), mask)

    mine = Mine()
    mine(local(), MASK).square().sum().backward()
    assert all(weight.grad is not None for weight in mine.parameters())
    other = Mine()
    other.load_state_dict(mine.state_dict())
    assert torch.equal(other(local(), MASK), mine(local(), MASK))


def test_the_embeddings_do_not_have_unit_length() -> None:
    assert openvse.pooling("max", dim=8)(100 * local()).norm(dim=1).min() > 2


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ((torch.randn(2, 8),), ["torch.float32", 2, 8, 8]),
        ((torch.randn(2, 4, 7),), [2, 4, 7, 8]),
        ((torch.ones(2, 4, 8, dtype=torch.long),), ["torch.int64", [2, 4, 8]]),
        ((local(), torch.ones(2, 3, dtype=torch.bool)), ["torch.bool", 2, 3, 2, 4]),
        ((local(), torch.ones(2, 4)), ["torch.float32", 2, 4]),
        ((local(), torch.tensor([[True] * 4, [False] * 4])), [1]),
    ],
)
def test_wrong_tensors_are_refused_in_one_line(tensors: tuple[torch.Tensor, ...], named: list[object]) -> None:
    assert names(refusal(DataError, openvse.pooling("gpo", dim=8), *tensors), *named)


def test_a_global_vector_is_asked_for_and_checked() -> None:
    pool = openvse.Pool(PIENet(input_dim=8, embed_dim=6))
    assert names(refusal(DataError, pool, local(), MASK), "PIENet", 2, 6)
    assert names(refusal(DataError, pool, local(), MASK, torch.randn(2, 8)), "torch.float32", 2, 8, 2, 6)
    assert pool(local(), MASK, torch.randn(2, 6)).shape == (2, 2, 6)


@pytest.mark.parametrize(
    ("part", "widths", "named"),
    [
        ("gop", (8,), ["'gop'", "'gpo'"]),
        ({"name": "k_max", "kk": 2}, (8,), ["pooling.kk"]),
        ({"k": 2}, (8,), ["{'k': 2}"]),
        ("gpo", (8, 4), [8, 4]),
        ("gpo", (0,), ["dim = 0"]),
    ],
)
def test_wrong_parts_are_refused_in_one_line(part: object, widths: tuple[int, ...], named: list[object]) -> None:
    assert names(refusal(RecipeError, openvse.pooling, part, *widths), *named)
