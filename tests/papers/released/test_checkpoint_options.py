"""The command line of a checkpoint: it decides the converted recipe's objective, and only plausible values do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_checkpoints as tiny
from openvse.conversion.convert import Conversion, convert
from openvse.errors import CheckpointError
from openvse.retrieval.build import build_objective
from openvse.tasks.recipes import parse_recipe
from openvse_papers.released import option
from tests.failures import Failures

Maker = Callable[..., dict[str, Any]]
NAN, INFINITE = float("nan"), float("inf")


def converted(checkpoint: dict[str, Any], tmp_path: Path) -> Conversion:
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json")
    return convert(tiny.save(checkpoint, tmp_path / "model.pth"), tmp_path / "out", vocabulary=vocabulary)


def recipe_of(checkpoint: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Convert, and return the recipe once its objective was built, as further training would build it."""
    model = converted(checkpoint, tmp_path).model
    stated = {key: model.provenance[key] for key in ("objective", "optimizer") if key in model.provenance}
    tree = {**model.spec.model_dump(), **stated, "name": "further", "training": {"phases": [{"epochs": 1}]}}
    recipe = parse_recipe(tree)
    build_objective(recipe)
    return recipe.to_dict()


@pytest.mark.parametrize(("options", "temperature"), [({}, 0.05), ({"tau": 0.07}, 0.07), ({"tau": 1}, 1.0)])
def test_vse_2ad_has_the_temperature_of_its_command_line(
    tmp_path: Path, options: dict[str, float], temperature: float
) -> None:
    recipe = recipe_of(tiny.vse_2ad(**options), tmp_path)
    assert recipe["objective"]["ranking"]["criterion"]["temperature"] == temperature


@pytest.mark.medium
@pytest.mark.parametrize(("make", "default"), [(tiny.vse_2ad, 0.2), (tiny.vse_infinity, 0.2), (tiny.pvse, 0.1)])
@pytest.mark.parametrize("margin", [None, 0.3])
def test_margins_are_those_of_the_command_line(
    tmp_path: Path, make: Maker, default: float, margin: float | None
) -> None:
    recipe = recipe_of(make() if margin is None else make(margin=margin), tmp_path)
    assert recipe["objective"]["ranking"]["criterion"]["margin"] == (default if margin is None else margin)


@pytest.mark.medium
def test_another_exponent_of_vse_2ad_is_a_note(tmp_path: Path) -> None:
    notes = converted(tiny.vse_2ad(scale=2.0), tmp_path).notes
    assert any("--scale 2, but adaptive_top_k counts negatives as with --scale 1.25" in note for note in notes)
    (tmp_path / "usual").mkdir()
    assert not any("--scale" in note for note in converted(tiny.vse_2ad(scale=1.25), tmp_path / "usual").notes)


def test_vse_infinity_mines_the_hardest_whatever_the_file_of_its_warm_up_says(tmp_path: Path) -> None:
    recipe = recipe_of(tiny.vse_infinity(max_violation=False), tmp_path)
    assert recipe["objective"]["ranking"]["miner"] == "hardest"


@pytest.mark.medium
def test_pvse_has_the_terms_kernel_and_optimiser_of_its_command_line(tmp_path: Path) -> None:
    recipe = recipe_of(
        tiny.pvse(mmd_weight=0.01, div_weight=0.2, lr=1e-3, weight_decay=0.02, max_violation=False), tmp_path
    )
    objective = recipe["objective"]
    assert objective["ranking"]["miner"] == "all"
    assert objective["diversity"] == {"name": "diversity", "weight": 0.2}
    assert objective["mmd"] == {"name": "mmd", "weight": 0.01, "kernel": "legacy_exp"}
    assert (recipe["optimizer"]["learning_rate"], recipe["optimizer"]["weight_decay"]) == (1e-3, 0.02)


@pytest.mark.medium
def test_pvse_of_one_embedding_has_the_ranking_term_alone(tmp_path: Path) -> None:
    recipe = recipe_of(tiny.pvse(num_embeddings=1, mmd_weight=0.01, div_weight=0.1), tmp_path)
    assert list(recipe["objective"]) == ["ranking"]


IMPLAUSIBLE: list[tuple[Maker, dict[str, Any], str]] = [
    (tiny.vse_infinity, {"margin": NAN}, "--margin is nan, but it must be a number from 0 to 2"),
    (tiny.vse_infinity, {"margin": INFINITE}, "--margin is inf"),
    (tiny.vse_infinity, {"margin": 200}, "--margin is 200"),
    (tiny.vse_infinity, {"margin": "0.2"}, "--margin is '0.2'"),
    (tiny.vse_infinity, {"margin": None}, "--margin is None"),
    (tiny.vse_infinity, {"margin": True}, "--margin is True"),
    (tiny.vse_infinity, {"margin": torch.ones(3)}, "--margin is a value of type Tensor"),
    (tiny.vse_infinity, {"margin": 10**300}, "--margin is 10{59},"),
    (
        tiny.vse_infinity,
        {"no_imgnorm": torch.zeros(2)},
        "--no_imgnorm is a value of type Tensor, but it must be True or False",
    ),
    (tiny.vse_infinity, {"grid": True, "input_scale_factor": INFINITE}, "--input_scale_factor is inf"),
    (tiny.vse_infinity, {"grid": True, "input_scale_factor": 0}, "--input_scale_factor is 0, but it must be a number"),
    (
        tiny.vse_infinity,
        {"grid": True, "backbone_source": "a\nb"},
        r"--backbone_source is 'a\\nb', but it must be a name",
    ),
    (tiny.vse_2ad, {"tau": NAN}, "--tau is nan, but it must be a number from 0.001 to 10"),
    (tiny.vse_2ad, {"tau": 0.0}, "--tau is 0.0"),
    (tiny.vse_2ad, {"tau": -0.05}, "--tau is -0.05"),
    (tiny.vse_2ad, {"tau": INFINITE}, "--tau is inf"),
    (tiny.vse_2ad, {"margin": -1.0}, "--margin is -1.0"),
    (tiny.vse_2ad, {"scale": NAN}, "--scale is nan"),
    (tiny.vse_2ad, {"grid": True, "input_scale_factor": NAN}, "--input_scale_factor is nan"),
    (tiny.vse_2ad, {"data_name": ["f30k"]}, "--data_name is a value of type list, but it must be a name"),
    (tiny.pvse, {"margin": NAN}, "--margin is nan"),
    (tiny.pvse, {"div_weight": NAN}, "--div_weight is nan"),
    (tiny.pvse, {"mmd_weight": -0.1}, "--mmd_weight is -0.1"),
    (tiny.pvse, {"lr": INFINITE}, "--lr is inf"),
    (tiny.pvse, {"weight_decay": NAN}, "--weight_decay is nan"),
    (tiny.pvse, {"crop_size": "large"}, "--crop_size is 'large', but it must be a whole number from 32 to 4096"),
    (tiny.pvse, {"crop_size": 224.5}, "--crop_size is 224.5"),
    (tiny.pvse, {"legacy": "yes"}, "--legacy is 'yes', but it must be True or False"),
    (tiny.pvse, {"video": True, "max_video_length": 10**9}, "--max_video_length is 1000000000"),
]


@pytest.mark.medium
def test_an_option_that_is_not_plausible_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    failures = Failures()
    for make, options, reason in IMPLAUSIBLE:
        with failures.of(make, options, reason):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(CheckpointError, match=f"model.pth.*{reason}") as error:
                converted(make(**options), tmp_path)
            assert "\n" not in str(error.value)
            assert not (tmp_path / "out").exists()
    assert not failures, failures


def test_options_that_are_not_used_may_be_anything(tmp_path: Path) -> None:
    converted(tiny.vse_infinity(learning_rate=NAN, tau="none", input_scale_factor=None), tmp_path)


def test_an_option_has_the_type_of_its_default() -> None:
    options = {"crop_size": 300, "margin": 2, "on": True, "data": "coco_precomp"}
    assert option(options, "margin", 0.5) == 2.0
    assert isinstance(option(options, "margin", 0.5), float)
    assert (option(options, "tau", 0.5), option({}, "crop_size", 224)) == (0.5, 224)
    assert option(options, "crop_size", 224) == 300
    assert (option(options, "on", False), option(options, "gone", True)) == (True, True)
    assert (option(options, "data", "f30k"), option(options, "gone", "f30k")) == ("coco_precomp", "f30k")
