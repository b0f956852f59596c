"""MultiView against its views one by one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from slow_loops import assert_equals_loop, ragged
from torch import Tensor

from openvse.aggregators import GPO, FSPool, KMax, Mean, MultiView, PIENet
from openvse.errors import RecipeError
from openvse.functional import sort_descending, sum_by_rank
from openvse.types import Features
from tests.naming import names, refusal


def slow_views(aggregator: MultiView, local: Tensor, pooled: Tensor) -> Tensor:
    """Each view of one item alone, its projection written out."""
    rows = []
    for projection, view in zip(aggregator.projections, aggregator.views, strict=True):
        own = local
        if isinstance(projection, torch.nn.Linear):
            own = torch.stack([projection.weight @ x + projection.bias for x in local])
        one = Features(own.unsqueeze(0), torch.ones(1, len(own), dtype=torch.bool), pooled.unsqueeze(0))
        rows.append(view(one).vectors[0])
    return torch.cat(rows)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("factory", [GPO, FSPool, PIENet])
def test_views_stand_side_by_side(share: bool, factory) -> None:
    torch.manual_seed(0)
    width = 4 if share else 6
    several = MultiView(input_dim=width, embed_dim=4, aggregator=factory, num_views=3, share_projection=share)
    several = several.double()
    assert_equals_loop(several, lambda *item: slow_views(several, *item), ragged([3, 1, 5], width, pooled_dim=4))


@pytest.mark.parametrize(
    ("factory", "share", "sorts"), [(GPO, True, 1), (FSPool, True, 1), (GPO, False, 3), (Mean, False, 0)]
)
def test_views_of_the_same_features_share_one_sort(factory, share: bool, sorts: int, monkeypatch) -> None:
    calls = []

    def counted(function):
        return lambda *arguments: calls.append(1) or function(*arguments)

    for room in ("simple", "composed"):
        monkeypatch.setattr(f"openvse.aggregators.{room}.sort_descending", counted(sort_descending))
    monkeypatch.setattr("openvse.aggregators.gpo.sum_by_rank", counted(sum_by_rank))
    several = MultiView(input_dim=4, embed_dim=4, aggregator=factory, num_views=3, share_projection=share)
    several(Features(torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)))
    assert len(calls) == sorts


def test_views_start_apart_and_have_their_own_weights() -> None:
    several = MultiView(input_dim=4, embed_dim=4)
    assert several(Features(torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool))).vectors.shape == (2, 3, 4)
    assert len({id(weight) for weight in several.parameters()}) == 3 * len(
        list(GPO(input_dim=4, embed_dim=4).parameters())
    )
    first, second = (view.coefficients(torch.tensor([5])) for view in list(several.views)[:2])
    assert not torch.allclose(first, second)


def test_residuals_follow_their_views() -> None:
    several = MultiView(input_dim=4, embed_dim=4, aggregator=PIENet, num_views=2).double()
    embedded = several(ragged([2, 3], 4))
    assert several.needs_pooled
    assert embedded.residual.shape == embedded.vectors.shape == (2, 4, 4)


def test_useless_views_are_refused() -> None:
    assert names(refusal(RecipeError, MultiView, input_dim=4, embed_dim=4, num_views=0), "num_views", 0)
    equal = partial(MultiView, input_dim=4, embed_dim=4, aggregator=partial(KMax, k=2))
    assert names(refusal(RecipeError, equal), "share_projection")
    MultiView(input_dim=4, embed_dim=4, aggregator=Mean, num_views=1)
