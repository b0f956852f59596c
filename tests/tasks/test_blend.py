"""Two models averaged: the ends are the models themselves, words of either are kept, and other parts are refused."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.errors import ModelError
from openvse.model.start import Start
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.tasks.blend import blend
from openvse.tasks.load import load, load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.kind import Request
from tests.tiny import tiny_recipe, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_recipe, write_tiny_questions

ONE = [{"epochs": 1}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny data set, a run on it, and a run from there on captions with another word."""
    folder = write_tiny_corpus(tmp_path_factory.mktemp("tiny"))
    run_recipe(tiny_recipe(folder, phases=[{"epochs": 2}]), folder / "first")
    (folder / "other.csv").write_text((folder / "tiny.csv").read_text().replace("water", "zebra"))
    tree = tiny_tree(folder, phases=[{"epochs": 3}]) | {"start": str(folder / "first")}
    tree["data"] = {**tree["data"], "source": str(folder / "other.csv")}
    run_recipe(parse_recipe(tree), folder / "second")
    return folder


def request(corpus: Path) -> Request:
    return Request(str(corpus / "other.csv"), "validation", (corpus / "features",))


def models(corpus: Path) -> tuple[TwoTower, TwoTower]:
    return load_as(TwoTower, corpus / "first" / "best"), load_as(TwoTower, corpus / "second" / "best")


@pytest.mark.medium
def test_the_share_is_the_best_and_the_weights_are_the_mean(corpus: Path) -> None:
    first, second = models(corpus)
    done = blend(first, second, request(corpus), num_shares=5)
    assert [share for share, _ in done.scores] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert dict(done.scores)[done.share] == max(score for _, score in done.scores)
    one, other, mean = (each.image.encoder.projection.linear.weight for each in (first, second, done.model))
    torch.testing.assert_close(mean, (1 - done.share) * one + done.share * other)
    assert done.model.provenance["blend"]["of"] == [first.fingerprint, second.fingerprint]


@pytest.mark.medium
def test_the_ends_score_as_the_models_and_words_of_one_keep_their_vectors(corpus: Path) -> None:
    first, second = models(corpus)
    done = blend(first, second, request(corpus), num_shares=2)
    scores = [blend(each, each, request(corpus), num_shares=2).scores[0][1] for each in (first, second)]
    # The first has no zebra, whose vector is the second's at both ends.
    assert done.scores[1][1] == pytest.approx(scores[1]) and done.metric == "rsum"
    for word in ("dog", "zebra"):
        vectors = [_vector(model, word) for model in (first, second, done.model)]
        expected = vectors[1] if word == "zebra" else vectors[int(done.share)]
        torch.testing.assert_close(vectors[2], expected)
    back = blend(second, first, request(corpus), num_shares=2)
    assert back.scores[0][1] == pytest.approx(scores[1])


def _vector(model: TwoTower, word: str) -> torch.Tensor:
    return model.text.encoder.words.weight[model.text.encoder.vocabulary.id_of(word)].detach()


@pytest.mark.medium
def test_a_gated_pooling_is_blended_with_the_model_below_it(corpus: Path) -> None:
    first, _ = models(corpus)
    tree = tiny_tree(corpus, phases=ONE)
    gated = {"aggregator": {"name": "gated", "pool": "max"}}
    kept = {key: tree[key] for key in ("name", "objective", "data", "training")}
    recipe = parse_recipe({**kept, "start": str(corpus / "first"), "image": gated, "text": gated})
    begun = Start("first", first, corpus / "first" / "best")
    second = build_model(recipe, start=begun)
    begun.give(second)
    with torch.no_grad():  # as if it had been trained
        second.image.aggregator.gate.fill_(0.5)
        second.image.encoder.projection.linear.weight.mul_(1.1)
    second.eval()
    done = blend(first, second, request(corpus), num_shares=3)
    ends = [blend(each, each, request(corpus), num_shares=2).scores[0][1] for each in (first, second)]
    assert [done.scores[0][1], done.scores[2][1]] == pytest.approx(ends)
    gate = second.image.aggregator.gate
    torch.testing.assert_close(done.model.image.aggregator.gate, done.share * gate)
    back = blend(second, first, request(corpus), num_shares=2)
    assert [score for _, score in back.scores] == pytest.approx(ends[::-1])


@pytest.mark.medium
def test_other_parts_tasks_and_vocabularies_are_refused(corpus: Path, tmp_path: Path) -> None:
    first, _ = models(corpus)
    tree = tiny_tree(corpus, phases=ONE)
    tree["text"]["aggregator"] = "mean"
    run_recipe(parse_recipe(tree), tmp_path / "mean")
    with pytest.raises(ModelError, match=r"text\.aggregator"):
        blend(first, load_as(TwoTower, tmp_path / "mean" / "best"), request(corpus))
    tree = tiny_tree(corpus, phases=ONE)
    tree["data"]["source"] = str(corpus / "other.csv")
    run_recipe(parse_recipe(tree), tmp_path / "alone")
    with pytest.raises(ModelError, match="'water'|'zebra'"):
        blend(first, load_as(TwoTower, tmp_path / "alone" / "best"), request(corpus))
    questions = write_tiny_questions(tmp_path / "questions")
    run_recipe(answering_recipe(questions, phases=ONE), tmp_path / "answers")
    answerer = load(tmp_path / "answers" / "best")
    with pytest.raises(ModelError):
        blend(first, answerer, request(corpus))
    done = blend(answerer, answerer, Request(f"question_folder:{questions}", "validation", (questions / "features",)))
    assert done.metric == "accuracy" and done.share == 0.0


@pytest.mark.medium
def test_the_command_writes_a_model_folder(corpus: Path, tmp_path: Path) -> None:

    paths = [str(corpus / "first"), str(corpus / "second")]
    where = ["--on", str(corpus / "other.csv"), "--features", str(corpus / "features"), "--out", str(tmp_path / "mean")]
    result = CliRunner().invoke(app, ["blend", *paths, *where])
    assert result.exit_code == 0, result.output
    assert "best" in result.output and "rsum" in result.output
    assert load_as(TwoTower, tmp_path / "mean").provenance["blend"]["split"] == "validation"
