"""Parts from names and options: the signature is the schema.

One mapping for a backbone and the encoder around it: whose key it is, and faults.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import nn

from openvse.aggregators import AGGREGATORS, KMax
from openvse.assembly.parts import build_image_encoder, build_part
from openvse.backbones import Precomputed
from openvse.encoders import TEXT_ENCODERS, ImageEncoder
from openvse.encoders.augmentations import AUGMENTATIONS, GridAugmentation, NoAugmentation, RegionAugmentation
from openvse.encoders.projections import PROJECTIONS, BiGRUVector, LinearProjection, MeanVector, ResidualMLP
from openvse.errors import RecipeError
from openvse.objectives import MINERS, All, Contrast, Hardest, InfoNCE
from openvse.registry import Registry
from openvse.retrieval.build import build_objective
from openvse.specs.model import Part
from openvse.tasks.recipes import parse_recipe
from openvse.train_cli.listing import first_line, options_of
from tests.failures import Failures
from tests.naming import names, refusal
from tests.seeing import image_encoder
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


SMALL = {"pretrained": False, "image_size": 32}


def build(**options: Any) -> Any:
    torch.manual_seed(0)
    return image_encoder("precomputed", embed_dim=4, feature_dim=6, **options)


def test_each_gets_its_own_options() -> None:
    encoder = build(num_frames=3, projection="linear", augmentation={"name": "grid", "rate": 0.4})
    assert isinstance(encoder.backbone, Precomputed) and encoder.backbone.frame_limit.num_frames == 3
    assert isinstance(encoder.projection, LinearProjection)
    assert isinstance(encoder.augmentation, GridAugmentation) and encoder.augmentation.rate == 0.4
    assert encoder.global_projection is None and not encoder.gives_pooled


def test_the_backbone_says_what_usually_follows_it() -> None:
    stored, grid = build(), image_encoder("efficientnet_lite0", **SMALL)
    clips = image_encoder("frames", backbone={"name": "efficientnet_lite0", **SMALL})
    assert isinstance(stored.projection, ResidualMLP) and type(stored.augmentation) is RegionAugmentation
    assert isinstance(grid.projection, LinearProjection) and type(grid.augmentation) is GridAugmentation
    assert isinstance(clips.projection, LinearProjection) and type(clips.augmentation) is NoAugmentation


def test_the_two_global_vectors() -> None:
    assert isinstance(build(global_vector="mean").global_projection, MeanVector)
    last = build(global_vector={"name": "bigru", "at_last": True}).global_projection
    assert isinstance(last, BiGRUVector) and last.at_last


def test_a_fault_is_where_the_recipe_has_it(failures: Failures) -> None:
    for options, named in [
        ({"imge_size": 3}, (".imge_size", "'image_size'", "openvse list parts efficientnet_lite0", 10)),
        ({"augmentatio": "grid"}, (".augmentatio", "'augmentation'")),
        ({"embed_dim_": 3}, (".embed_dim_",)),
        ({"image_size": "big"}, (".image_size:", "'big'")),
        ({"image_size": 8}, (":", "image_size", 8)),
        ({"projection": "mlp"}, (".projection:", "'mlp'")),
        ({"projection": {"name": "linear", "x": 1}}, (".projection.x",)),
        ({"augmentation": "gridd"}, (".augmentation:", "'gridd'")),
        ({"augmentation": {"name": "grid", "rate": 2}}, (".augmentation:", "rate", 2.0)),
        ({"global_vector": "gru"}, (".global_vector:", "'gru'")),
        ({"global_vector": "bigru", "embed_dim": 7}, (".global_vector:", "bigru", "embed_dim", 7)),
    ]:
        with failures.of(options):
            refused = refusal(RecipeError, image_encoder, "efficientnet_lite0", **(SMALL | options))
            assert names(refused, f"image.encoder{named[0]}", *named[1:]), refused


def test_an_unknown_backbone_names_the_nearest() -> None:
    assert names(refusal(RecipeError, image_encoder, "resnett"), "image.encoder", "'resnett'", "'resnet'")


def test_context_cannot_be_set() -> None:
    for key in ("assets", "backbone", "embed_dim"):
        part = Part(name="precomputed", feature_dim=3, **{key: 1})
        assert names(refusal(RecipeError, build_image_encoder, part, 4, None), f"image.encoder.{key}")
