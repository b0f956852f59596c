"""Recipes of published settings say what the papers print, or what the released code does where these are silent."""

from itertools import product
from typing import Any

import pytest
import torch

from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import list_recipes, read_recipe
from openvse.tasks.recipes import load_recipe
from openvse.training.optimizer import Schedule
from tests.failures import Failures

VSE_2AD = [
    f"vse_2ad/{data}_{features}_{text}"
    for data, features, text in product(("coco", "flickr30k"), ("regions", "grids", "patches"), ("bigru", "bert"))
]
RELEASED = ["vse_2ad/flickr30k_regions_bigru_released", "vse_2ad/flickr30k_regions_bert_released"]


def read(name: str) -> RetrievalRecipe:
    recipe = load_recipe(name)
    assert isinstance(recipe, RetrievalRecipe)
    return recipe


def test_adopt_is_the_released_one_at_the_papers_temperature() -> None:
    failures = Failures()
    for name in VSE_2AD + RELEASED:
        with failures.of(name):
            term = read(name).objective["ranking"].options
            assert term["miner"] == {"name": "adaptive_top_k", "uniformity": "all_cells"}
            assert term["criterion"] == {"name": "info_nce", "temperature": 0.05, "margin": 0.2}
            assert (term["reduction"], term["weight"]) == ("mean", 0.5)
    assert not failures, failures


def test_rates_of_vse_2ad_are_those_of_the_paper() -> None:
    failures = Failures()
    for name in VSE_2AD:
        with failures.of(name):
            recipe = read(name)
            phases = recipe.training.phases
            assert not any(phase.warmup_epochs for phase in phases)
            frozen = [("image.encoder.backbone",), (), ()] if "_grids_" in name else [(), ()]
            assert [phase.frozen for phase in phases] == frozen
            schedule = Schedule(recipe.optimizer, phases, steps_per_epoch=10)
            rates = [schedule.learning_rate(epoch, 0) for epoch in range(schedule.num_epochs)]
            assert rates == pytest.approx([5e-4] * 15 + [5e-5] * 10)
            assert set(recipe.optimizer.multipliers.values()) <= {0.1}
            decayed = "bigru" in name and "_grids_" not in name
            assert recipe.optimizer.weight_decay == (0.01 if decayed else 1e-4)
    assert not failures, failures


@pytest.mark.parametrize("name", [name for name in VSE_2AD if "_grids_" in name])
def test_grids_of_vse_2ad_are_the_detectors(name: str) -> None:
    encoder = read(name).image.encoder
    assert encoder.name == "resnet"
    assert encoder.options == {"form": "caffe", "pixels": "caffe", "image_size": 512}


@pytest.mark.parametrize("name", RELEASED)
def test_the_released_decay_of_vse_2ad_compounds(name: str) -> None:
    """Each epoch multiplies the rate that it finds by 0.1 ** (epoch // 15)."""
    recipe = read(name)
    rate, expected = 5e-4, []
    for epoch in range(25):
        rate *= 0.1 ** (epoch // 15)
        expected.append(rate)
    schedule = Schedule(recipe.optimizer, recipe.training.phases, steps_per_epoch=10)
    assert [schedule.learning_rate(epoch, 3) for epoch in range(schedule.num_epochs)] == pytest.approx(
        expected, rel=1e-12
    )
    assert recipe.published == ()
    by_text = {"bigru": (0.01, {}), "bert": (1e-4, {"text.encoder.backbone": 0.05})}
    assert (recipe.optimizer.weight_decay, recipe.optimizer.multipliers) == by_text[name.split("_")[-2]]


@pytest.mark.parametrize(
    "name", ["vse_infinity/coco_regions_bert", "vse_infinity/coco_butd_grids_bert", *VSE_2AD[1::2]]
)
def test_bert_is_augmented_and_started_as_released(name: str) -> None:
    options = read(name).text.encoder.options
    assert {key: options[key] for key in ("augment", "projection_start")} == {
        "augment": "words",
        "projection_start": "uniform",
    }


@pytest.mark.parametrize(("name", "k"), [("coco_grids_bigru", 2), ("tgif_frames_bigru", 3), ("mrw_frames_bigru", 5)])
def test_pvse_has_the_k_of_its_figures(name: str, k: int) -> None:
    recipe = read(f"pvse/{name}")
    towers: tuple[dict[str, Any], ...] = (recipe.image.aggregator.options, recipe.text.aggregator.options)
    assert towers == ({"num_embeddings": k}, {"num_embeddings": k})
    assert all(f"K = {k}" in told.source for told in recipe.published)


def test_words_of_glove_are_all_known_and_looked_up_as_released() -> None:
    """PVSE's and DivE's vocabularies have every word, and a word of PVSE's video tables is its fixed vector."""
    failures = Failures()
    every = [name for name in list_recipes() if name.startswith(("pvse/", "dive/")) and "_cpu" not in name]
    for name in [*every, "vse_pp/mrw_frames_bigru", "order/tgif_frames_bigru", "esa/coco_regions_bigru"]:
        with failures.of(name):
            options = read(name).text.encoder.options
            assert (options["tokenizer"], options["word_lookup"]) == ("nltk", "trimmed")
            assert options.get("min_count", 4) == (4 if "esa" in name else 1)
    for name in [name for name in list_recipes() if name.startswith(("devise/", "corr_"))]:
        with failures.of(name):
            assert read(name).text.encoder.options["min_count"] == 1
    assert len(every) == 18 and not failures, failures


@pytest.mark.parametrize("row", ["frozen", "k0", "no_global", "no_residual", "no_mil", "relative"])
def test_plots_of_pvse_are_of_models_before_the_cnn_is_fine_tuned(row: str) -> None:
    recipe = read(f"pvse/coco_grids_bigru_{row}")
    frozen = [(phase.epochs, phase.frozen) for phase in recipe.training.phases]
    assert (frozen, recipe.published) == ([(50, ("image.encoder.backbone",))], ())


STATED = [
    name for name in list_recipes() if any("parameters" in each for each in read_recipe(name).get("published") or ())
]


def test_all_rows_of_table_1_state_their_parameters() -> None:
    """VSE-infinity, Table 1, is the only table of the five papers with numbers of parameters: 6 rows, 2 features."""
    assert len(STATED) == 12


@pytest.mark.medium
def test_models_have_the_parameters_that_their_papers_print() -> None:
    failures = Failures()
    for name in STATED:
        with failures.of(name):
            recipe = read(name)
            with torch.device("meta"):
                model = build_model(recipe, captions=["a dog"] * 4)
            for told in recipe.published:
                for part, millions in told.parameters.items():
                    count = sum(each.numel() for each in model.get_submodule(part).parameters())
                    assert round(count / 1e6, 1) == millions, (part, count)
    assert not failures, failures
