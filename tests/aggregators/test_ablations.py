"""The options of PIE-Net and AdPool that the papers' ablations vary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

from openvse.aggregators import AdPool, PIENet
from openvse.errors import ModelError, RecipeError
from openvse.types import Features
from tests.naming import names, refusal

LOCAL, WHOLE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), torch.randn(2, 6)
FEATURES = Features(LOCAL, torch.ones(2, 3, dtype=torch.bool), WHOLE)


def pie_net(**options: Any) -> PIENet:
    torch.manual_seed(0)
    return PIENet(input_dim=4, embed_dim=6, **options)


def test_k_of_zero_is_the_global_vector() -> None:
    made = pie_net(num_embeddings=0)
    assert not list(made.parameters()) and not made.yields_residual
    torch.testing.assert_close(made(FEATURES).vectors[:, 0], WHOLE)


def test_without_the_global_vector_only_residuals_are_left() -> None:
    made, usual = pie_net(with_global=False), pie_net()
    assert not made.needs_pooled
    residual = usual(FEATURES).residual
    alone = made(Features(LOCAL, FEATURES.mask))
    torch.testing.assert_close(alone.vectors, layer_norm(residual, (6,)))  # type: ignore[arg-type]
    torch.testing.assert_close(alone.residual, residual)


def test_concatenated_with_the_global_vector() -> None:
    made = pie_net(combine="concatenate")(FEATURES)
    for item in range(2):
        for k in range(2):
            both = torch.cat([WHOLE[item], made.residual[item, k]])  # type: ignore[index]
            torch.testing.assert_close(made.vectors[item, k], layer_norm(both, (12,)))


def test_joined_embeddings_are_one() -> None:
    made, usual = pie_net(num_embeddings=3, joined=True), pie_net(num_embeddings=3)
    assert not made.yields_residual
    vectors = usual(FEATURES).vectors
    torch.testing.assert_close(made(FEATURES).vectors, torch.cat(list(vectors.unbind(1)), dim=1).unsqueeze(1))


def test_combinations_that_cannot_work_are_refused() -> None:
    for options in ({"combine": "concatenate"}, {"num_embeddings": 0}):
        assert names(refusal(RecipeError, pie_net, with_global=False, **options), "with_global")
    assert names(refusal(RecipeError, pie_net, num_embeddings=-1), "num_embeddings", -1)
    unpooled = Features(LOCAL, FEATURES.mask)
    assert names(refusal(ModelError, pie_net(num_embeddings=0), unpooled), "Features.pooled")


def ad_pool(**options: Any) -> AdPool:
    torch.manual_seed(0)
    return AdPool(input_dim=4, embed_dim=4, **options)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_fixed_balance_weighs_the_two_levels(share: float) -> None:
    made = ad_pool(balance=share)
    weights = made.token.weight[0]  # type: ignore[union-attr]
    for item, pooled in zip(LOCAL, made(FEATURES).vectors[:, 0], strict=True):
        ranked = item.sort(dim=0, descending=True).values
        powers = (ranked @ weights).exp()
        token = sum(power / powers.sum() * row for power, row in zip(powers, ranked, strict=True))
        soft = torch.stack([(column.exp() / column.exp().sum() * column).sum() for column in item.T])
        torch.testing.assert_close(pooled, share * token + (1 - share) * soft)


def test_a_random_balance_is_drawn_once() -> None:
    made, other = ad_pool(balance="random"), ad_pool(balance=0.5)
    assert made.share is not None and 0 < float(made.share) < 1 and float(made.share) != 0.5
    torch.testing.assert_close(made(FEATURES).vectors, made(FEATURES).vectors)
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(other(FEATURES).vectors, made(FEATURES).vectors)
    assert names(refusal(RecipeError, ad_pool, balance=1.5), "balance", 1.5)


def test_the_learned_balance_is_what_it_was() -> None:
    assert sorted(dict(ad_pool().named_parameters())) == ["balance.weight", "token.weight"]
