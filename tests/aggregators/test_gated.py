"""The gate: closed it is the base to the bit, its gradient opens it, and then the pooling learns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from openvse.aggregators import AGGREGATORS
from openvse.assembly.parts import build_part
from openvse.errors import ModelError, RecipeError
from openvse.functional import normalize
from openvse.similarities import ScaledCosine, SetMax
from openvse.specs.model import Part
from openvse.types import EmbeddingSet, Features
from tests.failures import Failures
from tests.naming import names, refusal

POOLS = ["gpo", "adpool", {"name": "pie_net", "num_embeddings": 3}, {"name": "multi_view", "num_views": 2}]


def features(seed: int = 0, width: int = 8) -> Features:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(6) < torch.tensor([6, 1, 4]).unsqueeze(1)
    return Features(torch.randn(3, 6, width, generator=generator), mask)


def make(name: str = "gated", width: int = 8, **options: Any) -> Any:
    torch.manual_seed(0)
    return build_part(AGGREGATORS, Part(name=name, **options), "image.aggregator", {"input_dim": width, "embed_dim": 8})


def unit(embedded: EmbeddingSet) -> EmbeddingSet:
    return EmbeddingSet(normalize(embedded.vectors.double()), embedded.mask)


@pytest.mark.medium
def test_a_closed_gate_gives_the_scores_of_the_base() -> None:
    """The vectors are equal to the bit; a product of matrices rounds several equal vectors otherwise than one."""
    failures = Failures()
    for base, pool, share in product(["first_token", "last_token", "map_head"], POOLS, [True, False]):
        with failures.of(share, pool, base):
            gated = make(base=base, pool=pool, share_projection=share)
            images, texts = gated(features()), gated(features(1))
            own = [unit(gated.base(features(seed))) for seed in (0, 1)]
            assert torch.equal(images.vectors, gated.base(features()).vectors.expand_as(images.vectors))
            assert images.vectors.shape[1] == {"pie_net": 3, "multi_view": 2}.get(
                pool["name"] if isinstance(pool, dict) else pool, 1
            )
            for similarity in (SetMax(), ScaledCosine()):
                scores = similarity.double()(unit(images), unit(texts))
                torch.testing.assert_close(scores, similarity(*own), rtol=0, atol=1e-14)
    assert not failures, failures


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_the_gate_learns_first_and_the_pooling_after_it(pool: Any) -> None:
    gated = make(base="first_token", pool=pool, share_projection=False)
    target = torch.randn(3, 1, 8)
    optimizer = torch.optim.SGD(gated.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        (normalize(gated(features()).vectors) * target).sum().backward()
        optimizer.step()

    step()
    behind = [*gated.pool.parameters(), *gated.projection.parameters()]
    assert gated.gate.grad.item() != 0 and gated.gate.item() != 0
    assert not any(weight.grad.any() for weight in behind)
    step()
    assert all(weight.grad.any() for weight in behind)


def test_a_step_is_as_long_as_the_gate_says() -> None:
    gated = make(base="first_token", pool="max", gate_start=0.25)
    moved = gated(features()).vectors - gated.base(features()).vectors
    torch.testing.assert_close(moved.norm(dim=-1), 0.25 * gated.base(features()).vectors.norm(dim=-1))
    cosine = torch.cosine_similarity(moved, gated.pool(features()).vectors, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_its_own_projection_begins_as_the_identity() -> None:
    shared, own = (make(pool="max", gate_start=0.5, share_projection=share) for share in (True, False))
    torch.testing.assert_close(shared(features()).vectors, own(features()).vectors)
    assert {name for name, _ in own.named_parameters()} == {"gate", "projection.weight", "projection.bias"}


def test_a_base_that_is_not_trained() -> None:
    gated = make(base="map_head", train_base=False)
    assert not any(weight.requires_grad for weight in gated.base.parameters())
    assert all(weight.requires_grad for weight in gated.pool.parameters())


def test_pie_net_gets_the_vector_of_the_base() -> None:
    gated = make(base="first_token", pool="pie_net", gate_start=1.0)
    assert not gated.needs_pooled and gated.yields_residual
    read = Features(features().local, features().mask, features().local[:, 0])
    torch.testing.assert_close(gated(features()).residual, gated.pool(read).residual)


def test_curves_show_the_gate() -> None:
    curves = make(pool="gpo", gate_start=0.5).curves()
    assert curves["gate"] == [0.5] and "pool.coefficients_10" in curves


def test_parts_that_do_not_fit_are_refused() -> None:
    for part in ("base", "pool"):
        assert names(refusal(RecipeError, make, **{part: "tokens"}), part)
    views = {"name": "multi_view", "num_views": 3}
    assert names(refusal(ModelError, make(base=views, pool="pie_net"), features()), 2, 3)
