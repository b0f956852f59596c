"""What every registered aggregator must hold, present and future."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.assembly import build_part
from openvse.specs import Part
from openvse.types import EmbeddingSet, Features

WIDTH = 8
LENGTHS = torch.tensor([5, 1, 9, 3])

# Every part as it comes, and the options that change what it computes, as a recipe writes them.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "adpool": [{"token_weights": "per_dimension"}],
    "conv1d": [{"length": 4}],
    "fs_pool": [{"num_pieces": 1}],
    "gcn": [{"aggregator": "seq2seq", "num_layers": 2}, {"aggregator": "pie_net"}],
    "gem": [{"exponent": 40.0}],
    "gpo": [
        {"generator": "transformer"},
        {"generator": "mlp"},
        {"generator": "interpolation", "num_positions": 4},
        {"positions": "learned", "num_positions": 4},
        {"per_dimension": True},
        {"per_dimension": True, "generator": "interpolation"},
    ],
    "log_sum_exp": [{"temperature": 0.01}],
    "multi_view": [
        {"num_views": 1},
        {"aggregator": "mean", "share_projection": False},
        {"aggregator": {"name": "k_max", "k": 2}, "share_projection": False, "num_views": 2},
        {"aggregator": {"name": "pie_net", "num_embeddings": 2}, "num_views": 2},
    ],
    "pie_net": [{"num_embeddings": 3}],
    "score_attention": [{"num_heads": 2, "num_vectors": 3}],
    "tokens": [{"unit_length": True}],
    "top_percent": [{"percent": 1}, {"percent": 100}],
}
CASES = [
    pytest.param(Part(name=name, **options), id="-".join([name, *map(str, options.values())]))
    for name in AGGREGATORS
    for options in [{}, *OPTIONS.get(name, [])]
]


def make(part: Part, seed: int = 0) -> Aggregator:
    torch.manual_seed(seed)
    context = {"input_dim": WIDTH, "embed_dim": WIDTH}
    return build_part(AGGREGATORS, part, "aggregator", context).double().eval()


def batch(extra: int = 0) -> Features:
    """Ragged items whose values depend on the item alone; the padding is garbage, as wide as asked."""
    size = int(LENGTHS.max()) + extra
    local = torch.full((len(LENGTHS), size, WIDTH), 1e4, dtype=torch.float64)
    pooled = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.float64)
    for item, length in enumerate(LENGTHS):
        generator = torch.Generator().manual_seed(item)
        local[item, :length] = torch.randn(int(length), WIDTH, dtype=torch.float64, generator=generator)
        pooled[item] = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
    return Features(local, torch.arange(size) < LENGTHS.unsqueeze(1), pooled)


def one(features: Features, item: int) -> Features:
    length, row = int(features.mask[item].sum()), slice(item, item + 1)
    return Features(features.local[row, :length], features.mask[row, :length], features.pooled[row])


def assert_same(actual: EmbeddingSet, expected: EmbeddingSet) -> None:
    """Compare the embeddings that exist, and residuals where there are any."""
    assert actual.mask.sum() == expected.mask.sum()
    torch.testing.assert_close(
        actual.vectors[actual.mask], expected.vectors[expected.mask], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(actual.residual, expected.residual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("part", CASES)
class TestAggregatorContract:
    def test_padding_changes_nothing(self, part: Part) -> None:
        aggregator = make(part)
        assert_same(aggregator(batch()), aggregator(batch(extra=6)))

    def test_nan_in_padding_changes_nothing(self, part: Part) -> None:
        aggregator, clean = make(part), batch()
        dirty = Features(
            clean.local.masked_fill(~clean.mask.unsqueeze(-1), float("nan")), clean.mask, clean.pooled
        )
        assert_same(aggregator(dirty), aggregator(clean))

    def test_an_item_does_not_see_its_batch_mates(self, part: Part) -> None:
        aggregator, together = make(part), batch()
        for item in range(len(LENGTHS)):
            assert_same(aggregator(together)[item : item + 1], aggregator(one(together, item)))

    def test_cached_inference_equals_training_mode(self, part: Part) -> None:
        aggregator = make(part)
        with torch.inference_mode():
            first, second = aggregator(batch()).vectors.clone(), aggregator(batch()).vectors.clone()
        torch.testing.assert_close(first, aggregator(batch()).vectors.detach(), rtol=0, atol=1e-12)
        assert torch.equal(first, second)

    def test_gradient_reaches_every_parameter_and_only_real_elements(self, part: Part) -> None:
        aggregator, features = make(part), batch()
        local = features.local.clone().requires_grad_()
        vectors = aggregator(Features(local, features.mask, features.pooled)).vectors
        (vectors * torch.randn(vectors.shape, dtype=torch.float64)).sum().backward()
        assert local.grad is not None
        assert local.grad.isfinite().all()
        assert (local.grad[~features.mask] == 0).all()
        assert local.grad[features.mask].abs().sum(dim=-1).max() > 0
        for label, parameter in aggregator.named_parameters():
            assert parameter.grad is not None, label
            assert parameter.grad.abs().max() > 0, label

    def test_order_matters_only_when_declared(self, part: Part) -> None:
        aggregator, features = make(part), one(batch(), 2)
        shuffled = Features(features.local.flip(1), features.mask, features.pooled)
        same = torch.allclose(aggregator(features).vectors, aggregator(shuffled).vectors, atol=1e-12)
        assert same != aggregator.order_aware

    def test_what_an_index_can_hold_has_one_size(self, part: Part) -> None:
        aggregator = make(part)
        counts = {aggregator(one(batch(), item)).vectors.shape[1] for item in range(len(LENGTHS))}
        assert aggregator.fixed_k is (len(counts) == 1)
        assert aggregator.fixed_k or not aggregator.indexable

    def test_residuals_come_only_when_declared(self, part: Part) -> None:
        aggregator = make(part)
        assert aggregator.yields_residual is (aggregator(batch()).residual is not None)

    def test_state_dict_round_trip(self, part: Part) -> None:
        aggregator, other = make(part), make(part, seed=1)
        with torch.inference_mode():
            other(batch())  # fill whatever it caches with the wrong weights
        other.load_state_dict(aggregator.state_dict())
        with torch.inference_mode():
            assert_same(other(batch()), aggregator(batch()))

    def test_every_embedding_is_finite_and_marked(self, part: Part) -> None:
        embedded = make(part)(batch())
        assert embedded.vectors.shape[:2] == embedded.mask.shape
        assert embedded.vectors.shape[2] == WIDTH
        assert embedded.mask.any(dim=1).all()
        assert embedded.vectors[embedded.mask].isfinite().all()


def test_options_belong_to_registered_parts() -> None:
    assert sorted(set(OPTIONS) - set(AGGREGATORS)) == []
