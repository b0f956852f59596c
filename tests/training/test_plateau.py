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
from openvse.training.schedule import Plateau
from openvse.types import Relevance
from tests.tiny import tiny_tree


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 600) | st.integers(0, 4), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.1]),
    st.sampled_from(["max", "min"]),
    st.sampled_from([0.0, 1e-4, 0.3]),
)
def test_equals_pytorch(
    values: list[float], patience: int, factor: float, mode: str, threshold: float
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    # PyTorch's patience is the number of bad epochs that change nothing.
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, factor=factor, patience=patience - 1, threshold=threshold, eps=0.0
    )
    spec = PlateauSpec(patience=patience, factor=factor, mode=mode, threshold=threshold)
    plateau = Plateau()
    for value in values:
        oracle.step(float(value))
        plateau = plateau.after(float(value), spec)
        assert plateau.rate_factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert plateau.best == (oracle.best if mode == "max" else -oracle.best)


def test_the_released_schedule_of_pvse_halves_while_rsum_rises() -> None:
    """Its scheduler is PyTorch's with the defaults, mode min and patience 10 among them, given RSUM."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, min_lr=1e-10)
    spec, plateau, halved = PlateauSpec(patience=11, mode="min", threshold=1e-4), Plateau(), []
    for epoch in range(50):
        before = plateau.rate_factor
        oracle.step(300.0 + epoch)
        plateau = plateau.after(300.0 + epoch, spec)
        assert 2e-4 * plateau.rate_factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        halved += [epoch] if plateau.rate_factor < before else []
    assert halved == [11, 22, 33, 44]


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
        ({"patience": 1, "mode": "maximum"}, r"training\.plateau\.mode: .*'max' or 'min'.*got 'maximum'"),
        ({"patience": 1, "threshold": -0.1}, r"training\.plateau\.threshold: .*greater than or equal to 0"),
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
