"""Weights that are relative to the size of another term (PVSE, Fig. 7)."""

import pytest
import torch

from openvse.errors import RecipeError
from openvse.objectives import MMD, All, Contrast, Diversity, Hinge
from openvse.objectives.base import Objective
from openvse.retrieval.build import build_objective
from openvse.tasks.recipes import load_recipe
from tests.objectives.set_batches import random_set_batch


def objective() -> Objective:
    terms = {"ranking": Contrast(miner=All(), criterion=Hinge()), "diversity": Diversity(), "mmd": MMD()}
    return Objective(terms, {"ranking": 2.0, "diversity": 0.1, "mmd": 0.01}, {"diversity": "ranking", "mmd": "ranking"})


def test_a_term_is_as_large_as_its_share_of_the_other() -> None:
    batch = random_set_batch(4, 6, 3, seed=0, text_k=2)
    made = objective()
    mil = made.terms["ranking"](batch)
    values = made(batch)
    torch.testing.assert_close(values["diversity"], 0.1 * mil)
    torch.testing.assert_close(values["mmd"], 0.01 * mil)
    torch.testing.assert_close(values["loss"], (2.0 + 0.1 + 0.01) * mil)


def test_its_slope_is_its_own() -> None:
    """The quotient has no gradient, so the slope is that of the term, scaled."""
    batch = random_set_batch(4, 6, 3, seed=0, text_k=2)
    residual = batch.images.residual.requires_grad_()  # type: ignore[union-attr]
    made = objective()
    alone = made.terms["diversity"](batch)
    (expected,) = torch.autograd.grad(alone, residual, retain_graph=True)
    (slope,) = torch.autograd.grad(made(batch)["loss"], residual)
    factor = 0.1 * float(made.terms["ranking"](batch).detach() / alone.detach())
    torch.testing.assert_close(slope, factor * expected)


def test_a_term_of_zero_stays_zero() -> None:
    batch = random_set_batch(4, 6, 1, seed=0)  # one embedding of an item is never redundant
    values = objective()(batch)
    assert float(values["diversity"].detach()) == 0.0 and torch.isfinite(values["loss"])


def test_a_recipe_names_the_other_term() -> None:
    changed = ["objective.diversity.relative_to=ranking"]
    made = build_objective(load_recipe("pvse/flickr8k_grids_cpu", changed))
    assert made.relative_to == {"diversity": "ranking"}
    for wrong in ("rankin", "diversity"):
        with pytest.raises(RecipeError, match=r"objective\.diversity"):
            build_objective(load_recipe("pvse/flickr8k_grids_cpu", [f"objective.diversity.relative_to={wrong}"]))
