"""gaussian: the embedding of an item is a distribution, and the distance of two is an inner product."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from aggregators.slow_loops import assert_equals_loop, ragged
from openvse.aggregators import Gaussian, KMax, Max, Mean, PIENet
from openvse.errors import RecipeError
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
