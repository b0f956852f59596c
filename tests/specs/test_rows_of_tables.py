"""Recipes of the rows of the papers' tables differ from the main recipe in what the row says."""

from typing import Any

import pytest

from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import load_recipe
from tests.failures import Failures


def plain(name: str, *left_out: str) -> dict[str, Any]:
    """Return a recipe without its name, description and figures, and without some of its sections."""
    recipe = load_recipe(name)
    assert isinstance(recipe, RetrievalRecipe)
    tree = recipe.to_dict()
    for path in ("name", "description", "published", *left_out):
        *above, last = path.split(".")
        section = tree
        for key in above:
            section = section[key]
        section.pop(last)
    return tree


def has(name: str, path: str) -> bool:
    """Return whether a recipe sets an option of the path SIDE.encoder.OPTION."""
    side, _, option = path.split(".")
    return option in getattr(load_recipe(name), side).encoder.options


SIDES = ("image.aggregator", "text.aggregator")
AUGMENTATION = ("image.encoder.augmentation", "text.encoder.size_augmentation")
TABLE_1 = ("seq2seq", "gcn", "gcn_seq2seq", "self_attention", "best")
AGGREGATORS = (
    *("no_tok", "no_emb", "no_adpool", "balance_25", "balance_50", "balance_75", "balance_random"),
    *("lip", "seq2seq", "gcn", "self_attention", "ada_pool", "soft_pool", "gpo", "manual"),
)


def test_rows_of_vse_2ad_differ_in_the_aggregators() -> None:
    failures = Failures()
    for row in AGGREGATORS:
        with failures.of(row):
            assert plain(f"vse_2ad/coco_regions_bigru_{row}", *SIDES) == plain("vse_2ad/coco_regions_bigru", *SIDES)
    assert not failures, failures


@pytest.mark.parametrize(
    ("row", "base"),
    [
        *((row, "regions_bigru") for row in ("transformer", "per_dimension")),
        ("transformer", "butd_grids_bigru"),
        *((row, "regions_bert") for row in ("mean_cls", "mean_gpo", "gpo_cls", "data_dependent")),
    ],
)
def test_rows_of_vse_infinity_differ_in_the_aggregators(row: str, base: str) -> None:
    name = f"vse_infinity/coco_{base}"
    assert plain(f"{name}_{row}", *SIDES) == plain(name, *SIDES)


def test_rows_without_gpo_have_no_size_augmentation() -> None:
    """VSE-infinity's VSE++ and Table 1: else as the row of GPO; B.1 calls augmenting VSE++ a finding of its own."""
    failures = Failures()
    for name, base in [
        *(
            (f"vse_infinity/coco_{base}_{row}", base)
            for base in ("regions_bigru", "butd_grids_bigru")
            for row in TABLE_1
        ),
        *((f"vse_pp/coco_{base}", base) for base in ("regions_bigru", "regions_bert", "butd_grids_bigru")),
        ("vse_pp/coco_wsl_grids_bert", "wsl_grids_bert"),
    ]:
        with failures.of(name, base):
            recipe = load_recipe(name)
            assert recipe.image.encoder.options["augmentation"] == "none"
            assert recipe.text.encoder.options["size_augmentation"] == "none"
            given = [path for path in AUGMENTATION if has(f"vse_infinity/coco_{base}", path)]
            assert plain(name, *SIDES, *AUGMENTATION) == plain(f"vse_infinity/coco_{base}", *SIDES, *given)
    assert not failures, failures


def test_augmented_vse_pp_is_offered_beside() -> None:
    augmented = "vse_pp/coco_regions_bigru_augmentation"
    assert plain(augmented, *SIDES) == plain("vse_infinity/coco_regions_bigru", *SIDES)
    assert load_recipe(augmented).image.aggregator.name == "mean"


@pytest.mark.parametrize("data", ["msr_vtt_frames_bigru", "vatex_frames_bigru", "clips_cpu", "photo_clips_cpu"])
def test_hgr_infinity_is_hgr_with_gpo(data: str) -> None:
    hgr, infinity = plain(f"hgr/{data}"), plain(f"hgr_infinity/{data}")
    pools = []
    for recipe in (hgr, infinity):
        pools.append([recipe[side]["aggregator"].pop("aggregator") for side in ("image", "text")])
    assert pools == [["attention_pool"] * 2, ["gpo"] * 2]
    assert hgr == infinity


def test_videos_train_as_in_table_4() -> None:
    for method in ("vse_pp", "vse_infinity", "hgr", "hgr_infinity"):
        for data in ("msr_vtt", "vatex"):
            recipe = load_recipe(f"{method}/{data}_frames_bigru")
            phases = recipe.training.phases
            assert [(phase.epochs, phase.learning_rate) for phase in phases] == [(25, None), (10, 1e-5)]
            assert (recipe.optimizer.learning_rate, recipe.embed_dim, recipe.training.batch_size) == (1e-4, 1024, 128)
            assert recipe.training.clip_norm is None
            assert recipe.text.encoder.options["gru_start"] == "orthogonal"


@pytest.mark.parametrize("data", ["msr_vtt", "vatex"])
def test_dropout_of_videos_is_where_hgr_has_it(data: str) -> None:
    """On word embeddings before the GRU, and on projected frames or their mean; not on the states of words."""
    for method in ("hgr", "hgr_infinity"):
        recipe = load_recipe(f"{method}/{data}_frames_bigru")
        options = recipe.text.aggregator.options
        assert (options.get("dropout", 0.0), options["reasoning_dropout"]) == (0.0, 0.5)
        assert recipe.text.encoder.options["dropout"] == recipe.image.aggregator.options["dropout"] == 0.2
    recipe = load_recipe(f"vse_pp/{data}_frames_bigru")
    assert recipe.text.encoder.options["dropout"] == 0.2
    assert recipe.image.encoder.options["projection"] == {"name": "linear", "dropout": 0.2}


@pytest.mark.parametrize(
    "row", ["coco_grids_bigru_k0", "coco_grids_bigru_k1", "tgif_frames_bigru_k1", "mrw_frames_bigru_k1"]
)
def test_pvse_with_one_embedding_has_the_ranking_term_alone(row: str) -> None:
    """With one embedding of each item, PVSE's released code computes neither the diversity nor the MMD."""
    assert set(plain(f"pvse/{row}")["objective"]) == {"ranking"}
    assert set(plain(f"pvse/{row[:-3]}")["objective"]) == {"ranking", "diversity", "mmd"}


def test_a_null_term_is_left_out() -> None:
    recipe = load_recipe("pvse/coco_grids_bigru", ["objective.diversity=null"])
    assert isinstance(recipe, RetrievalRecipe) and set(recipe.objective) == {"ranking", "mmd"}
