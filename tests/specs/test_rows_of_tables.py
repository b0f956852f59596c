"""Recipes of the rows of the papers' tables differ from the main recipe in what the row says."""

from __future__ import annotations

from typing import Any

import pytest

from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import load_recipe


def plain(name: str, *left_out: str) -> dict[str, Any]:
    """Return a recipe without its name and figures, and without some of its sections."""
    recipe = load_recipe(name)
    assert isinstance(recipe, RetrievalRecipe)
    tree = recipe.to_dict()
    for path in ("name", "published", *left_out):
        *above, last = path.split(".")
        section = tree
        for key in above:
            section = section[key]
        section.pop(last)
    return tree


SIDES = ("image.aggregator", "text.aggregator")
AGGREGATORS = (
    *("no_tok", "no_emb", "no_adpool", "balance_25", "balance_50", "balance_75", "balance_random"),
    *("lip", "seq2seq", "gcn", "self_attention", "ada_pool", "soft_pool", "gpo", "manual"),
)


@pytest.mark.parametrize("row", AGGREGATORS)
def test_rows_of_vse_2ad_differ_in_the_aggregators(row: str) -> None:
    assert plain(f"vse_2ad/coco_regions_bigru_{row}", *SIDES) == plain("vse_2ad/coco_regions_bigru", *SIDES)


@pytest.mark.parametrize(
    ("row", "base"),
    [
        *(
            (row, "regions_bigru")
            for row in ("seq2seq", "gcn", "gcn_seq2seq", "best", "transformer", "per_dimension")
        ),
        *((row, "butd_grids_bigru") for row in ("self_attention", "best", "transformer")),
        *((row, "regions_bert") for row in ("mean_cls", "mean_gpo", "gpo_cls", "data_dependent")),
    ],
)
def test_rows_of_vse_infinity_differ_in_the_aggregators(row: str, base: str) -> None:
    name = f"vse_infinity/coco_{base}"
    assert plain(f"{name}_{row}", *SIDES) == plain(name, *SIDES)


@pytest.mark.parametrize(
    "data", ["msr_vtt_frames_bigru", "vatex_frames_bigru", "clips_cpu", "photo_clips_cpu"]
)
def test_hgr_infinity_is_hgr_with_gpo(data: str) -> None:
    hgr, infinity = plain(f"hgr/{data}"), plain(f"hgr_infinity/{data}")
    pools = []
    for recipe in (hgr, infinity):
        recipe.pop("description", None)
        pools.append([recipe[side]["aggregator"].pop("aggregator") for side in ("image", "text")])
    assert pools == [["attention_pool"] * 2, ["gpo"] * 2]
    assert hgr == infinity


def test_videos_train_as_in_table_4() -> None:
    for method in ("vse_pp", "vse_infinity", "hgr", "hgr_infinity"):
        for data in ("msr_vtt", "vatex"):
            recipe = load_recipe(f"{method}/{data}_frames_bigru")
            phases = recipe.training.phases
            assert [(phase.epochs, phase.learning_rate) for phase in phases] == [(25, None), (10, 1e-5)]
            assert (recipe.optimizer.learning_rate, recipe.embed_dim, recipe.training.batch_size) == (
                1e-4,
                1024,
                128,
            )


def test_a_null_term_is_left_out() -> None:
    assert set(plain("pvse/coco_grids_bigru_k0")["objective"]) == {"ranking", "mmd"}
    recipe = load_recipe("pvse/coco_grids_bigru", ["objective.diversity=null"])
    assert isinstance(recipe, RetrievalRecipe) and set(recipe.objective) == {"ranking", "mmd"}
