"""What every registered aggregator must hold, present and future."""

from __future__ import annotations

import pytest
import torch

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.types import Features

WIDTH = 8
LENGTHS = torch.tensor([5, 1, 9, 3])


def make(name: str) -> Aggregator:
    torch.manual_seed(0)
    return AGGREGATORS.get(name)(input_dim=WIDTH, embed_dim=WIDTH).double().eval()


def batch(extra: int = 0) -> Features:
    """Ragged items whose values depend on the item alone; the padding is garbage, as wide as asked."""
    size = int(LENGTHS.max()) + extra
    local = torch.full((len(LENGTHS), size, WIDTH), 1e4, dtype=torch.float64)
    for item, length in enumerate(LENGTHS):
        local[item, :length] = torch.randn(
            int(length), WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(item)
        )
    return Features(local, torch.arange(size) < LENGTHS.unsqueeze(1))


def one(features: Features, item: int) -> Features:
    length = int(features.mask[item].sum())
    return Features(features.local[item : item + 1, :length], features.mask[item : item + 1, :length])


@pytest.mark.parametrize("name", AGGREGATORS)
class TestAggregatorContract:
    def test_padding_changes_nothing(self, name: str) -> None:
        aggregator = make(name)
        torch.testing.assert_close(
            aggregator(batch()).vectors, aggregator(batch(extra=6)).vectors, rtol=0, atol=1e-12
        )

    def test_nan_in_padding_changes_nothing(self, name: str) -> None:
        aggregator, clean = make(name), batch()
        dirty = Features(clean.local.masked_fill(~clean.mask.unsqueeze(-1), float("nan")), clean.mask)
        torch.testing.assert_close(aggregator(dirty).vectors, aggregator(clean).vectors, rtol=0, atol=1e-12)

    def test_an_item_does_not_see_its_batch_mates(self, name: str) -> None:
        aggregator, together = make(name), batch()
        for item in range(len(LENGTHS)):
            alone = aggregator(one(together, item)).vectors[0]
            torch.testing.assert_close(aggregator(together).vectors[item], alone, rtol=0, atol=1e-12)

    def test_cached_inference_equals_training_mode(self, name: str) -> None:
        aggregator = make(name)
        with torch.inference_mode():
            first, second = aggregator(batch()).vectors.clone(), aggregator(batch()).vectors.clone()
        torch.testing.assert_close(first, aggregator(batch()).vectors.detach(), rtol=0, atol=1e-12)
        assert torch.equal(first, second)

    def test_gradient_reaches_every_parameter_and_only_real_elements(self, name: str) -> None:
        aggregator, features = make(name), batch()
        local = features.local.clone().requires_grad_()
        weights = torch.randn(len(LENGTHS), 1, WIDTH, dtype=torch.float64)
        (aggregator(Features(local, features.mask)).vectors * weights).sum().backward()
        assert local.grad is not None
        assert local.grad.isfinite().all()
        assert (local.grad[~features.mask] == 0).all()
        assert local.grad[features.mask].abs().sum(dim=-1).max() > 0
        for label, parameter in aggregator.named_parameters():
            assert parameter.grad is not None, label
            assert parameter.grad.abs().max() > 0, label

    def test_order_matters_only_when_declared(self, name: str) -> None:
        aggregator, features = make(name), one(batch(), 2)
        shuffled = Features(features.local.flip(1), features.mask)
        same = torch.allclose(aggregator(features).vectors, aggregator(shuffled).vectors, atol=1e-12)
        assert same != type(aggregator).order_aware

    def test_state_dict_round_trip(self, name: str) -> None:
        aggregator = make(name)
        torch.manual_seed(1)
        other = AGGREGATORS.get(name)(input_dim=WIDTH, embed_dim=WIDTH).double().eval()
        with torch.inference_mode():
            other(batch())  # fill whatever it caches with the wrong weights
        other.load_state_dict(aggregator.state_dict())
        with torch.inference_mode():
            torch.testing.assert_close(
                other(batch()).vectors, aggregator(batch()).vectors, rtol=0, atol=1e-12
            )

    def test_every_embedding_is_finite_and_marked(self, name: str) -> None:
        embedded = make(name)(batch())
        assert embedded.vectors.shape[:2] == embedded.mask.shape
        assert embedded.mask.any(dim=1).all()
        assert embedded.vectors[embedded.mask].isfinite().all()
