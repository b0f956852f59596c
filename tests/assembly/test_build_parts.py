"""Parts from names and options: the signature is the schema."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import nn

from openvse.aggregators import AGGREGATORS, KMax
from openvse.assembly.parts import build_part
from openvse.encoders import TEXT_ENCODERS, ImageEncoder
from openvse.encoders.augmentations import AUGMENTATIONS
from openvse.encoders.projections import PROJECTIONS
from openvse.errors import RecipeError
from openvse.objectives import MINERS, All, Contrast, Hardest, InfoNCE
from openvse.registry import Registry
from openvse.retrieval.build import build_objective
from openvse.specs.model import Part
from openvse.tasks.recipes import parse_recipe
from openvse.train_cli.listing import first_line, options_of
from tests.naming import names, refusal
from tests.tiny import tiny_tree

if TYPE_CHECKING:
    from fractions import Fraction

WIDTHS = {"input_dim": 4, "embed_dim": 4}


class Choosy(nn.Module):
    """A part with options of several types."""

    def __init__(self, *, size: int, mode: Literal["a", "b"] = "a", scale: float | None = None) -> None:
        super().__init__()
        self.given = (size, mode, scale)


CHOOSY: Registry[Choosy] = Registry("choosy", {"choosy": Choosy})


class Untyped(nn.Module):
    def __init__(self, size, shapes=(1, 2)):  # type: ignore[no-untyped-def]
        super().__init__()
        self.given = (size, shapes)


def untyped(size, shapes=(1, 2)):  # type: ignore[no-untyped-def]
    """A function that makes a part."""
    return Untyped(size, shapes)


class Hidden(nn.Module):
    """An option whose type exists for type checkers alone."""

    def __init__(self, *, size: Fraction) -> None:
        super().__init__()


@pytest.mark.parametrize("made_by", [Untyped, untyped, partial(Untyped, shapes=(3,))])
def test_an_option_without_a_type_may_be_anything(made_by: Any) -> None:
    registry: Registry[Untyped] = Registry("untyped", {"untyped": made_by})
    for value in (2, "two", [1], None):
        assert build_part(registry, Part(name="untyped", size=value), "x").given[0] == value
    assert build_part(registry, Part(name="untyped", size=1, shapes="big"), "x").given == (1, "big")
    assert names(refusal(RecipeError, build_part, registry, Part(name="untyped"), "x"), "x.size")
    assert options_of(made_by)["size"] == "Any, required"


def test_a_type_that_cannot_be_found_is_one_line() -> None:
    registry: Registry[Hidden] = Registry("hidden", {"hidden": Hidden})
    refused = refusal(RecipeError, build_part, registry, Part(name="hidden", size=1), "x")
    assert names(refused, "Hidden", "Fraction")


def test_the_type_of_an_inner_part_lists_its_names() -> None:
    options = options_of(TEXT_ENCODERS.get("transformers_text"))
    assert options["projection"] == f"one of {PROJECTIONS.names()}, default linear"
    assert options["size_augmentation"].startswith("one of ['none'")
    assert options_of(Contrast)["miner"] == f"one of {MINERS.names()}, required"
    assert options_of(ImageEncoder)["augmentation"] == f"one of {AUGMENTATIONS.names()} or None, default None"


def test_a_part_without_a_docstring_is_listed() -> None:
    assert first_line(Untyped) and first_line(partial(untyped, 1)) == first_line(untyped)


def test_options_and_context_reach_the_constructor() -> None:
    part = build_part(AGGREGATORS, Part(name="k_max", k=3), "image.aggregator", {**WIDTHS, "unused": 1})
    assert isinstance(part, KMax) and part.k == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kk": 3}, [".kk", "'k'"]),
        ({"k": "many"}, [".k", "'many'"]),
        ({"k": 0}, [": ", "k_max", "k = 0"]),
        ({"input_dim": 3}, [".input_dim"]),
    ],
)
def test_a_wrong_option_names_its_place(options: dict[str, Any], named: list[str]) -> None:
    part = Part(name="k_max", **options)
    refused = refusal(RecipeError, build_part, AGGREGATORS, part, "image.aggregator", WIDTHS)
    first, *others = named
    assert names(refused, f"image.aggregator{first}", *others)


def test_types_of_the_signature_are_checked() -> None:
    assert build_part(CHOOSY, Part(name="choosy", size="3", scale=None), "x").given == (3, "a", None)
    assert names(refusal(RecipeError, build_part, CHOOSY, Part(name="choosy"), "x"), "x.size")
    refused = refusal(RecipeError, build_part, CHOOSY, Part(name="choosy", size=1, mode="c"), "x")
    assert names(refused, "x.mode", "'a'", "'b'", "'c'")


def test_nested_parts_and_phase_overrides() -> None:
    recipe = parse_recipe(tiny_tree(Path()))
    first, second = (build_objective(recipe, phase).terms["ranking"] for phase in recipe.training.phases)
    assert isinstance(first, Contrast) and isinstance(first.miner, All)
    assert isinstance(second, Contrast) and isinstance(second.miner, Hardest)


@pytest.mark.parametrize(
    ("ranking", "named"),
    [
        ({"miner": "hardestt"}, ["miner", "'hardestt'", "'hardest'"]),
        ({"miner": {"name": "all", "n": 1}}, ["miner.n"]),
        ({"weight": "heavy"}, ["weight"]),
        ({"reduction": "max"}, ["reduction"]),
    ],
)
def test_a_wrong_objective_names_its_place(ranking: dict[str, Any], named: list[str]) -> None:
    tree = tiny_tree(Path())
    tree["objective"]["ranking"].update(ranking)
    refused = refusal(RecipeError, lambda: build_objective(parse_recipe(tree)))
    first, *others = named
    assert names(refused, f"objective.ranking.{first}", *others)


def test_a_criterion_takes_its_options_through_the_recipe() -> None:
    tree = tiny_tree(Path())
    tree["objective"]["ranking"]["criterion"] = {"name": "info_nce", "temperature": 0.07, "learned": True}
    tree["objective"]["ranking"]["weight"] = 0.5
    objective = build_objective(parse_recipe(tree))
    criterion = objective.terms["ranking"].criterion
    assert isinstance(criterion, InfoNCE) and objective.weights == {"ranking": 0.5}
    assert torch.isclose((-criterion.log_scale).exp(), torch.tensor(0.07))
