"""Recipes of answering: which keys there are, what goes together, and what a recipe of the other task is told."""

from pathlib import Path

import pytest

from openvse.errors import RecipeError
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.training.kind import published_for
from openvse_papers.vqa.recipe import VQARecipe
from tests.failures import Failures
from tests.tiny import tiny_tree
from tests.tiny_questions import answering_tree, question_only


def test_the_task_decides_the_kind_of_a_recipe() -> None:
    assert isinstance(parse_recipe(answering_tree(Path())), VQARecipe)
    assert isinstance(parse_recipe(tiny_tree(Path())), RetrievalRecipe)  # as before there were tasks
    assert parse_recipe(tiny_tree(Path()) | {"task": "retrieval"}) == parse_recipe(tiny_tree(Path()))
    recipe = parse_recipe(answering_tree(Path()))
    assert parse_recipe(recipe.to_dict()) == recipe


def test_a_wrong_recipe_names_its_place() -> None:
    failures = Failures()
    for change, message in [
        ({"task": "vqaa"}, "'vqaa'.*'vqa'"),
        ({"task": 3}, "task.*3"),
        ({"answer": {}}, r"\banswer\b.*'answers'"),
        ({"answers": {"min_cout": 3}}, r"answers\.min_cout.*'min_count'"),
        ({"answers": {"min_count": 0}}, r"answers\.min_count.*1"),
        ({"head": {"dropout": 1.0}}, r"head\.dropout.*1"),
        ({"objective": {"ranking": "contrast"}}, "objective"),
        ({"image": None}, "image.*fusion"),
        ({"fusion": None}, "image.*fusion"),
        ({"training": {"phases": [{"epochs": 1, "objective": {"ranking.miner": "all"}}]}}, "objective"),
        ({"training": {"phases": [{"epochs": 1}], "plateau": {"patience": 1}}}, "plateau.metric"),
    ]:
        with failures.of(change, message):
            with pytest.raises(RecipeError, match=message) as caught:
                parse_recipe(answering_tree(Path()) | change)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert not failures, failures


def test_without_images() -> None:
    recipe = parse_recipe(question_only(answering_tree(Path())))
    assert recipe.image is None and recipe.fusion is None


def test_a_plateau_follows_accuracy() -> None:
    tree = answering_tree(Path(), plateau={"patience": 2, "metric": "accuracy"})
    plateau = parse_recipe(tree).training.plateau
    assert plateau is not None and plateau.metric == "accuracy"


def test_published_figures_are_those_of_as_many_questions() -> None:
    recipe = load_recipe("score_attention/vqa2_regions_bigru")
    provenance = {"published": recipe.to_dict()["published"]}
    figures = published_for(provenance, {"num_questions": 214_354})
    assert figures["Score attention, Table I, k = 5: VQA 2.0, validation"]["accuracy"] == 60.99
    assert published_for(provenance, {"num_questions": 1}) == {}
    assert (recipe.embed_dim, recipe.answers.min_count, recipe.training.batch_size) == (512, 9, 64)
    assert recipe.fusion is not None and recipe.fusion.options == {"num_heads": 8, "num_vectors": 5, "dropout": 0.1}


@pytest.mark.parametrize("aggregator", ["mean", "max", "log_sum_exp", "conv1d", "first_token"])
def test_the_baselines_differ_from_score_attention_in_the_fusion_alone(aggregator: str) -> None:
    changes = [f"fusion={{name: pooled, aggregator: {aggregator}, class_token: {aggregator == 'first_token'}}}"]
    tree = load_recipe("score_attention/daquar_grids_cpu", changes).to_dict()
    ours = load_recipe("score_attention/daquar_grids_cpu").to_dict()
    assert tree.pop("fusion") != ours.pop("fusion")
    assert tree == ours


def test_without_the_image_the_rest_is_the_same() -> None:
    alone = load_recipe("score_attention/daquar_question_only").to_dict()
    ours = load_recipe("score_attention/daquar_grids_cpu").to_dict()
    assert alone["text"]["encoder"] == ours["text"]["encoder"]
    for tree in (alone, ours):
        for key in ("name", "description", "image", "text", "fusion"):
            del tree[key]
        for phase in tree["training"]["phases"]:
            del phase["epochs"]  # as many as validation asks for
    assert alone == ours
