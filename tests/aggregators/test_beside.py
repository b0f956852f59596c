"""beside: the cosine of a model is the weighted mean of the cosines of its two halves."""

from __future__ import annotations

import pytest
import torch

from openvse.aggregators import Beside, PIENet
from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.types import Features
from tests.naming import names, refusal


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_cosine_is_the_weighted_mean_of_two(share: float) -> None:
    torch.manual_seed(0)
    part = Beside(input_dim=6, embed_dim=9, base_dim=4, share=share)
    features = Features(torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    one, other = part(features).vectors[:, 0]
    base = normalize(part.base(features).vectors[:, 0])
    local = part.projection(features.local)
    pooled = normalize(part.inner(Features(local, features.mask)).vectors[:, 0])
    assert one.norm().item() == pytest.approx(1)
    expected = (1 - share) * (base[0] @ base[1]) + share * (pooled[0] @ pooled[1])
    torch.testing.assert_close(one @ other, expected)


def test_the_base_can_be_kept() -> None:
    frozen = Beside(input_dim=6, embed_dim=8, train_base=False)
    assert frozen.base.linear.out_features == 4
    assert not any(weight.requires_grad for weight in frozen.base.parameters())
    assert all(weight.requires_grad for weight in frozen.inner.parameters())
    trained = Beside(input_dim=6, embed_dim=9, base_dim=4)
    assert all(weight.requires_grad for weight in trained.parameters())


@pytest.mark.parametrize(
    ("options", "named"),
    [({"base_dim": 9}, "base_dim"), ({"base_dim": 0}, "base_dim"), ({"base_dim": 4, "share": 1.5}, "share")],
)
def test_options_out_of_range_are_refused(options: dict[str, float], named: str) -> None:
    assert names(refusal(RecipeError, Beside, input_dim=6, embed_dim=9, **options), named)


@pytest.mark.parametrize("side", ["base", "pool"])
def test_parts_of_several_vectors_are_refused(side: str) -> None:
    given = {"input_dim": 6, "embed_dim": 9, "base_dim": 4, side: PIENet}
    assert names(refusal(RecipeError, Beside, **given), side)
