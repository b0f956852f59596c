"""The plateau rule against PyTorch's, and what a recipe may say about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openvse.errors import RecipeError
from openvse.evaluation import chance_metrics
from openvse.specs import PlateauSpec
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.training.plateau import Plateau
from openvse.types import Relevance
from tests.tiny import tiny_tree


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 4), st.sampled_from([0.5, 0.1]))
def test_equals_pytorch(values: list[int], patience: int, factor: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    # PyTorch's patience is the number of bad epochs that change nothing.
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=factor, patience=patience - 1, threshold=0.0, eps=0.0
    )
    spec, plateau = PlateauSpec(patience=patience, factor=factor), Plateau()
    for value in values:
        oracle.step(float(value))
        plateau = plateau.after(float(value), spec)
        assert plateau.rate_factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
    assert plateau.best == max(values)


def test_an_example_by_hand() -> None:
    spec, plateau, factors = PlateauSpec(patience=2), Plateau(), []
    for value in (10.0, 20.0, 20.0, 19.0, 21.0, 5.0, 6.0, 7.0, 8.0):
        plateau = plateau.after(value, spec)
        factors.append(plateau.rate_factor)
    assert factors == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_every_metric_that_it_offers_is_measured_and_is_better_when_larger() -> None:
    pairs = np.arange(4)
    measured = chance_metrics(Relevance(pairs, pairs, 4, 4))
    offered = PlateauSpec.model_fields["metric"].annotation.__args__
    assert set(offered) - {"accuracy"} == {name for name in measured if name == "rsum" or "_r" in name}


@pytest.mark.parametrize(
    ("plateau", "message"),
    [
        ({}, r"training\.plateau\.patience: field required"),
        ({"patience": 0}, r"training\.plateau\.patience: .*greater than or equal to 1"),
        ({"patience": 1, "factor": 1.0}, r"training\.plateau\.factor: .*less than 1"),
        ({"patience": 1, "metric": "i2t_medr"}, r"training\.plateau\.metric: .*'rsum'.*got 'i2t_medr'"),
        ({"patience": 1, "metrics": "rsum"}, "unknown key training.plateau.metrics; did you mean 'metric'"),
    ],
)
def test_a_wrong_plateau_names_its_place(plateau: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(tiny_tree(Path(), plateau=plateau))
    assert "\n" not in str(caught.value)


def test_the_recipe_of_pvse_halves() -> None:
    recipe = load_recipe("pvse/coco_grids_bigru")
    assert recipe.training.plateau == PlateauSpec(factor=0.5, patience=10, metric="rsum")


def test_each_task_has_its_own_metrics() -> None:
    with pytest.raises(RecipeError, match="plateau.metric is accuracy, which retrieval does not have"):
        parse_recipe(tiny_tree(Path(), plateau={"patience": 1, "metric": "accuracy"}))
