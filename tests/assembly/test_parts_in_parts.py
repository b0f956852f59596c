"""Parts that make parts: what a recipe gives them, and where their faults are placed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from openvse.aggregators import AGGREGATORS, GPO, Aggregator, Mean, MultiView
from openvse.assembly.parts import PartMaker, build_part
from openvse.errors import RecipeError
from openvse.objectives import All, Miner
from openvse.registry import Maker, Registry
from openvse.retrieval.build import build_model
from openvse.specs.model import Part
from openvse.tasks.recipes import parse_recipe
from tests.naming import names, refusal

CONTEXT = {"input_dim": 6, "embed_dim": 6}


def build(**options: Any) -> Aggregator:
    return build_part(AGGREGATORS, Part(name="multi_view", **options), "image.aggregator", CONTEXT)


def test_a_part_makes_as_many_as_it_likes() -> None:
    torch.manual_seed(0)
    built = build(aggregator={"name": "gpo", "hidden_dim": 8}, num_views=2)
    assert isinstance(built, MultiView)
    first, second = built.views
    assert first.score.weight.shape == (1, 8)
    assert not torch.equal(first.score.weight, second.score.weight)


def test_the_part_around_it_decides_the_widths() -> None:
    wide = {"input_dim": 10, "embed_dim": 6}
    part = Part(name="multi_view", aggregator="mean", share_projection=False)
    built = build_part(AGGREGATORS, part, "image.aggregator", wide)
    assert all(isinstance(view, Mean) for view in built.views)


def test_parts_nest_more_than_once() -> None:
    built = build(aggregator={"name": "multi_view", "aggregator": "gpo", "num_views": 2}, num_views=2)
    assert [len(view.views) for view in built.views] == [2, 2]


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ("gpoo", [":", "'gpoo'", "'gpo'"]),
        ({"name": "k_max", "kk": 3}, [".kk"]),
        ({"name": "k_max", "k": 0}, [":", "k_max", "k = 0"]),
        ({"name": "gpo", "hidden_dim": "wide"}, [".hidden_dim"]),
        ({"name": "gpo", "input_dim": 3}, [".input_dim"]),
        ({"name": "multi_view", "num_views": 0}, [":", "multi_view", "num_views = 0"]),
        ({"name": "multi_view", "aggregator": {"name": "k_max", "k": 0}}, [".aggregator:", "k_max", "k = 0"]),
    ],
)
def test_a_fault_inside_names_its_own_path_once(inner: Any, named: list[str]) -> None:
    refused = refusal(RecipeError, build, aggregator=inner)
    assert names(refused, f"image.aggregator.aggregator{named[0]}", *named[1:])
    assert refused.count("image.aggregator") == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"generator": "mlpp"}, ["x.generator:", "'mlpp'", "'mlp'"]),
        ({"generator": {"name": "mlp", "hidden_dim": 3}}, ["x.generator.hidden_dim"]),
        ({"generator": "transformer", "position_dim": 6}, ["x.generator:", "transformer", "position_dim", 6]),
        ({"positions": "learnt"}, ["x.positions:", "'learnt'", "'learned'"]),
        ({"generator": "interpolation", "positions": "learned"}, ["x:", "gpo", "positions: learned"]),
    ],
)
def test_parts_of_gpo_are_parts_like_all_others(options: dict[str, Any], named: list[str]) -> None:
    part = Part(name="gpo", **options)
    assert names(refusal(RecipeError, build_part, AGGREGATORS, part, "x", CONTEXT), *named)


class Outer(nn.Module):
    """A part with a part that is built at once, and two that it may make itself."""

    def __init__(self, *, miner: Miner, view: Maker[Aggregator] = Mean, more: Maker[Aggregator] | None = None) -> None:
        super().__init__()
        self.miner, self.view, self.more = miner, view, more


NARROW = partial(GPO, hidden_dim=4)


class Sized(nn.Module):
    """A part whose inner part is, by default, one with options."""

    def __init__(self, *, view: Maker[Aggregator] = NARROW) -> None:
        super().__init__()
        self.view = view


OUTER: Registry[Outer] = Registry("outer", {"outer": Outer})


def test_the_annotation_says_when_a_part_is_made() -> None:
    plain = build_part(OUTER, Part(name="outer", miner="all"), "x")
    assert isinstance(plain.miner, All) and plain.view is Mean and plain.more is None
    made = build_part(OUTER, Part(name="outer", miner="all", view="gpo", more={"name": "k_max", "k": 2}), "x")
    assert made.view == PartMaker(AGGREGATORS, Part(name="gpo"), "x.view")
    assert isinstance(made.view(**CONTEXT), GPO) and made.view(**CONTEXT) is not made.view(**CONTEXT)
    assert made.more is not None and made.more(**CONTEXT, unknown=1).k == 2
    assert build_part(OUTER, Part(name="outer", miner="all", more=None), "x").more is None


def test_options_without_a_name_are_those_of_the_part_used_by_default() -> None:
    assert build(aggregator={"hidden_dim": 8}, num_views=1).views[0].score.weight.shape == (1, 8)
    assert names(refusal(RecipeError, build, aggregator={"hidden": 8}), "image.aggregator.aggregator.hidden")


def test_a_default_with_options_keeps_those_that_are_not_given() -> None:
    views: Registry[Sized] = Registry("sized", {"sized": Sized})
    made = build_part(views, Part(name="sized", view={"temperature": 0.5}), "x").view
    assert made.part == Part(name="gpo", hidden_dim=4, temperature=0.5)
    assert build_part(views, Part(name="sized", view={"hidden_dim": 6}), "x").view.part.options == {"hidden_dim": 6}
    assert build_part(views, Part(name="sized", view="gpo"), "x").view.part.options == {}


def test_options_without_a_name_need_a_default() -> None:
    for given, named in (
        ({"miner": {"k": 3}}, ["x.miner.name"]),
        ({"miner": "all", "more": {"k": 3}}, ["x.more.name"]),
        ({"miner": "all", "more": "gpoo"}, ["x.more", "'gpoo'", "'gpo'"]),
    ):
        assert names(refusal(RecipeError, build_part, OUTER, Part(name="outer", **given), "x"), *named)


def tree(image: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    hinge = {"name": "contrast", "miner": "all", "criterion": "hinge"}
    return {
        "name": "x",
        "embed_dim": 8,
        "image": {"encoder": {"name": "precomputed", "feature_dim": 6, **image}, "aggregator": "pie_net"},
        "text": {"encoder": {"name": "bigru", "min_count": 1, **text}, "aggregator": "pie_net"},
        "objective": {"ranking": hinge},
        "training": {"phases": [{"epochs": 1}]},
    }


def test_pie_net_reads_what_its_encoders_yield() -> None:
    recipe = parse_recipe(tree({"global_vector": "mean", "projection": "none"}, {"output": "words", "word_dim": 10}))
    model = build_model(recipe, captions=["a red dog"])
    assert model.image.aggregator.hidden.in_features == 6
    assert model.text.aggregator.hidden.in_features == 10
    texts = model.encode_text(["a dog", "red"])
    assert texts.vectors.shape == (2, 2, 8)
    torch.testing.assert_close(texts.vectors.norm(dim=-1), torch.ones(2, 2))
    assert texts.residual is not None


@pytest.mark.parametrize(
    ("image", "text", "side"), [({}, {"output": "words"}, "image"), ({"global_vector": "mean"}, {}, "text")]
)
def test_an_encoder_without_a_global_vector_is_refused(image, text, side) -> None:
    refused = refusal(RecipeError, build_model, parse_recipe(tree(image, text)), captions=["a red dog"])
    assert names(refused, f"{side}.aggregator", "pie_net", "global_vector")
