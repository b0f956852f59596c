"""Terms that a model's parts do not suit are refused when the objective is built, with the path and the reason."""

from pathlib import Path
from typing import Any

import pytest

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.errors import RecipeError
from openvse.objectives.base import Objective
from openvse.retrieval.build import build_model, build_objective
from openvse.specs.recipe import PhaseSpec
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.types import EmbeddingSet, Features
from tests.naming import names, refusal
from tests.tiny import tiny_tree, write_tiny_corpus

RANKING = {"name": "contrast", "miner": "hardest", "criterion": "hinge"}
BOUND = {**RANKING, "name": "multi_view_bound"}
AVERAGE = {**RANKING, "name": "multi_view_average"}
PIE_IMAGE = {
    "encoder": {"name": "precomputed", "feature_dim": 12, "projection": "none", "global_vector": "mean"},
    "aggregator": "pie_net",
}
PIE_TEXT = {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1, "output": "words"}, "aggregator": "pie_net"}


class Tokens(Aggregator):
    """Keeps all elements: K = N."""

    indexable = False
    fixed_k = False

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()

    def forward(self, features: Features) -> EmbeddingSet:
        return EmbeddingSet(features.local, features.mask)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AGGREGATORS, "_parts", {**AGGREGATORS._parts, "tokens": Tokens})


def build(
    term: dict[str, Any],
    *,
    image: str | dict[str, Any] = "gpo",
    text: str | dict[str, Any] = "gpo",
    similarity: str = "set_max",
) -> Objective:
    """Build a model of two sides, each an aggregator or a whole side, and the objective ``extra`` for it."""
    tree = {**tiny_tree(Path()), "similarity": similarity, "objective": {"ranking": RANKING, "extra": term}}
    for side, given in (("image", image), ("text", text)):
        whole = isinstance(given, dict) and "encoder" in given
        tree[side] = given if whole else {**tree[side], "aggregator": given}
    recipe = parse_recipe(tree)
    return build_objective(recipe, model=build_model(recipe, captions=["red dog"]))


@pytest.mark.parametrize(
    ("image", "text", "fits"),
    [
        ({"combine": "concatenate"}, {}, False),
        ({"combine": "concatenate"}, {"combine": "concatenate"}, True),
        ({}, {"joined": True}, False),
        ({"joined": True}, {"joined": True, "num_embeddings": 3}, False),
        ({"joined": True}, {"combine": "concatenate"}, True),  # twice as wide by either way
        ({"joined": True, "num_embeddings": 1}, {}, True),
        ({"num_embeddings": 3}, {"num_embeddings": 0, "combine": "concatenate"}, True),
    ],
)
def test_both_sides_have_one_width(image: dict[str, Any], text: dict[str, Any], fits: bool) -> None:
    sides = {
        "image": {**PIE_IMAGE, "aggregator": {"name": "gcn", "aggregator": {"name": "pie_net", **image}}},
        "text": {**PIE_TEXT, "aggregator": {"name": "pie_net", **text}},
    }
    if fits:
        build({**RANKING, "weight": 1.0}, **sides)
        return
    with pytest.raises(RecipeError, match=r"\d\d .*\d\d"):
        build({**RANKING, "weight": 1.0}, **sides)


class TestResiduals:
    def test_neither_side_has_any(self) -> None:
        message = r"^objective\.extra: diversity .*image\.aggregator gpo .*text\.aggregator mean .*pie_net"
        with pytest.raises(RecipeError, match=message):
            build({"name": "diversity"}, text="mean")

    @pytest.mark.parametrize("sides", [{"image": PIE_IMAGE}, {"text": PIE_TEXT}])
    def test_one_side_is_enough(self, sides: dict[str, Any]) -> None:
        assert "extra" in build({"name": "diversity"}, **sides).terms

    @pytest.mark.parametrize(
        ("around", "refused"),
        [
            ({"name": "multi_view", "aggregator": "pie_net"}, False),
            ({"name": "gcn", "aggregator": "pie_net"}, False),
            ({"name": "multi_view", "aggregator": "gpo"}, True),
            ({"name": "gcn", "aggregator": "mean"}, True),
        ],
    )
    def test_parts_around_parts_pass_it_on(self, around: dict[str, Any], refused: bool) -> None:
        # pie_net reads raw features and a global vector; the poolings need a projection.
        image = {**PIE_IMAGE, "aggregator": around}
        if refused:
            image = {"encoder": {"name": "precomputed", "feature_dim": 12}, "aggregator": around}
            with pytest.raises(RecipeError, match=f"image.aggregator.*{around['name']}"):
                build({"name": "diversity"}, image=image)
        else:
            build({"name": "diversity"}, image=image)


@pytest.mark.parametrize("term", [BOUND, AVERAGE], ids=lambda term: term["name"])
class TestViews:
    @pytest.mark.usefixtures("tokens")
    def test_a_number_that_differs_by_image(self, term: dict[str, Any]) -> None:
        message = rf"^objective\.extra: {term['name']} .*image\.aggregator tokens "
        with pytest.raises(RecipeError, match=message) as caught:
            build(term, image="tokens")
        assert "\n" not in str(caught.value)

    @pytest.mark.usefixtures("tokens")
    def test_texts_may_differ(self, term: dict[str, Any]) -> None:
        build(term, text="tokens")

    @pytest.mark.usefixtures("tokens")
    def test_a_part_around_such_a_part(self, term: dict[str, Any]) -> None:
        with pytest.raises(RecipeError, match=r"image\.aggregator"):
            build(term, image={"name": "gcn", "aggregator": "tokens"})

    def test_another_similarity_than_the_cosine(self, term: dict[str, Any]) -> None:
        with pytest.raises(RecipeError, match="similarity"):
            build(term, image={"name": "multi_view", "num_views": 2}, similarity="order")
        build(term, image={"name": "multi_view", "num_views": 2})


@pytest.mark.parametrize("term", [RANKING, {"name": "mmd"}], ids=lambda term: term["name"])
@pytest.mark.usefixtures("tokens")
def test_other_terms_take_anything(term: dict[str, Any]) -> None:
    build(term, image="tokens", text="tokens", similarity="order")


def test_without_a_model_nothing_is_asked() -> None:
    tree = {**tiny_tree(Path()), "objective": {"extra": {"name": "diversity"}}}
    assert "extra" in build_objective(parse_recipe(tree)).terms


def test_a_term_that_a_phase_brings_is_refused_too() -> None:
    recipe = parse_recipe(tiny_tree(Path()))
    model = build_model(recipe, captions=["red dog"])
    phase = PhaseSpec(epochs=1, objective={"ranking": {"name": "diversity"}})
    assert names(refusal(RecipeError, build_objective, recipe, phase, model=model), "objective.ranking")


def test_training_refuses_before_it_reads_any_features(tmp_path: Path) -> None:
    tree = tiny_tree(write_tiny_corpus(tmp_path / "data"))
    tree["objective"]["extra"] = {"name": "diversity"}
    tree["data"]["features"] = str(tmp_path / "none")
    assert names(refusal(RecipeError, lambda: run_recipe(parse_recipe(tree), tmp_path / "run")), "objective.extra")


@pytest.mark.medium
def test_order_embeddings_train(tmp_path: Path) -> None:
    tree = tiny_tree(write_tiny_corpus(tmp_path / "data"), phases=[{"epochs": 20}])
    tree["similarity"] = "order"
    result = run_recipe(parse_recipe(tree), tmp_path / "run")
    assert result.progress.best_score > 400  # chance is about 290 among 8 images
