"""What every registered miner and criterion must hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.objectives import CRITERIA, MINERS
from openvse_testing import check_part


def problem(anchors: int, candidates: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Random scores and positives; every anchor has one positive or more, some have no negative."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(anchors, candidates, dtype=torch.float64, generator=generator) * 2 - 1 + shift
    positives = torch.rand(anchors, candidates, generator=generator) > 0.7
    positives[torch.arange(anchors), torch.randint(candidates, (anchors,), generator=generator)] = True
    return scores, positives


@pytest.mark.parametrize("name", MINERS)
def test_the_miner_keeps_its_promises(name: str) -> None:
    check_part(MINERS, name)


@pytest.mark.parametrize("name", CRITERIA)
def test_the_criterion_keeps_its_promises(name: str) -> None:
    check_part(CRITERIA, name)


@pytest.mark.parametrize("name", MINERS)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 999), st.sampled_from([0.0, -5.0, 5.0]))
def test_miner_takes_no_positive_and_at_least_one_negative(
    name: str, anchors: int, candidates: int, seed: int, shift: float
) -> None:
    scores, positives = problem(anchors, candidates, seed, shift)
    negatives = MINERS.get(name)()(scores.requires_grad_(), positives)
    assert negatives.dtype == torch.bool and not negatives.requires_grad
    assert not (negatives & positives).any()
    assert (negatives.any(dim=1) == ~positives.all(dim=1)).all()


@pytest.mark.parametrize("name", CRITERIA)
class TestOurCriteria:
    """Promises that openvse's own criteria keep beyond the contract."""

    def test_no_loss_at_perfect_separation(self, name: str) -> None:
        positives = torch.eye(4, dtype=torch.bool)
        perfect = torch.where(positives, 1.0, -1.0).double()
        assert 0 <= CRITERIA.get(name)().double()(perfect, positives, ~positives).sum() < 1e-6

    def test_every_negative_is_pushed_down(self, name: str) -> None:
        positives = torch.eye(4, dtype=torch.bool)
        scores = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
        CRITERIA.get(name)().double()(scores, positives, ~positives).sum().backward()
        assert scores.grad is not None
        assert (scores.grad[~positives] > 0).all()

    def test_an_anchor_without_negatives_costs_nothing(self, name: str) -> None:
        positives = torch.ones(2, 3, dtype=torch.bool)
        losses = CRITERIA.get(name)().double()(torch.zeros(2, 3, dtype=torch.float64), positives, ~positives)
        torch.testing.assert_close(losses, torch.zeros(6, dtype=torch.float64))
