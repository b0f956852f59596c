"""gaussian: the embedding of an item is a distribution, and the distance of two is an inner product.

MultiView against its views one by one.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from slow_loops import assert_equals_loop, ragged
from torch import Tensor

from openvse.aggregators import GPO, FSPool, Gaussian, KMax, Max, Mean, MultiView, PIENet
from openvse.errors import RecipeError
from openvse.functional import sort_descending, sum_by_rank
from openvse.similarities import CSD
from openvse.types import Features
from tests.naming import names, refusal


def made(side: str, seed: int = 0) -> Gaussian:
    torch.manual_seed(seed)
    options = {"mean": Mean, "log_variance": partial(KMax, k=2), "start": -1.0}
    part = Gaussian(input_dim=5, embed_dim=6, side=side, **options).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(part.to_log_variance.weight)
    return part


def slow(part: Gaussian, local: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the log-variances of one item, one element at a time."""
    means = [part.to_mean.weight @ x + part.to_mean.bias for x in local]
    mean = sum(means, torch.zeros(4, dtype=torch.float64)) / len(means)
    logs = torch.stack([part.to_log_variance.weight @ x + part.to_log_variance.bias for x in local])
    pooled = torch.stack([sum(sorted(column, reverse=True)[:2]) / min(2, len(local)) for column in logs.T])
    return mean / sum(value**2 for value in mean) ** 0.5, pooled


@pytest.mark.parametrize("side", ["image", "text"])
def test_it_equals_a_loop_over_elements_and_dimensions(side: str) -> None:
    part = made(side)

    def loop(local: Tensor, _: Tensor) -> Tensor:
        mean, logs = slow(part, local)
        half = -sum(value.exp() for value in logs).reshape(1) / 2  # type: ignore[union-attr]
        one = torch.ones(1, dtype=torch.float64)
        return torch.cat([mean, half, one] if side == "image" else [mean, one, half]).unsqueeze(0)

    assert_equals_loop(part, loop, ragged([3, 1, 4], 5))


def test_the_inner_product_is_the_closed_form_sampled_distance() -> None:
    image, text = made("image"), made("text", seed=1)
    images, texts = image(ragged([3, 1, 4], 5, seed=0)), text(ragged([2, 5], 5, seed=1))
    scores = CSD()(images, texts)
    for i, features in enumerate(ragged([3, 1, 4], 5, seed=0).local):
        for t, others in enumerate(ragged([2, 5], 5, seed=1).local):
            (m, z), (n, y) = slow(image, features[: (3, 1, 4)[i]]), slow(text, others[: (2, 5)[t]])
            distance = ((m - n) ** 2).sum() + z.exp().sum() + y.exp().sum()
            torch.testing.assert_close(scores[i, t], 1 - distance / 2)


def test_the_distance_is_that_of_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    image, text = made("image")(ragged([3], 5)), made("text", seed=1)(ragged([4], 5, seed=1))
    draws = [
        side.vectors[0, 0, :4] + (side.residual[0, 0] / 2).exp() * torch.randn(200_000, 4, generator=generator)  # type: ignore[index]
        for side in (image, text)
    ]
    sampled = (draws[0] - draws[1]).square().sum(dim=1).mean()
    torch.testing.assert_close(2 * (1 - CSD()(image, text)[0, 0]), sampled, rtol=0.01, atol=0)


def test_every_item_begins_with_the_same_variance() -> None:
    part = Gaussian(input_dim=5, embed_dim=6, mean=Max, log_variance=Max, start=-2.0)
    features = Features(torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))
    assert torch.equal(part(features).residual, torch.full((2, 1, 4), -2.0))


def test_options_that_make_no_distribution_are_refused() -> None:
    assert names(refusal(RecipeError, Gaussian, input_dim=5, embed_dim=2), "embed_dim", 2)
    for name in ("mean", "log_variance"):
        assert names(refusal(RecipeError, Gaussian, input_dim=5, embed_dim=6, **{name: PIENet}), name, "PIENet")


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

    for room in ("base", "composed"):
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
