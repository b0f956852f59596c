"""The part keeps the promises of every aggregator, equals its formula, and the recipe names it."""

import torch
from boltzmann_pool import recipes

import openvse
from openvse_testing import check_part


def test_they_keep_their_contracts() -> None:
    """Padding changes nothing, every parameter gets a gradient, and so on; the recipes name parts that exist."""
    check_part("aggregator", "boltzmann")
    check_part("aggregator", "boltzmann", options={"temperature": 0.1})
    check_part("recipes", recipes)


def test_it_equals_the_formula() -> None:
    """Two elements, by hand."""
    pooled = openvse.pooling({"name": "boltzmann", "temperature": 0.5}, dim=1)(torch.tensor([[[1.0], [3.0]]]))
    weight = torch.tensor(4.0).sigmoid()  # of the second: e^6 / (e^2 + e^6)
    torch.testing.assert_close(pooled, 3 * weight.view(1, 1) + 1 - weight)
