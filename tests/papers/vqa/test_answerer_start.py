"""An answerer that begins from another one, or from the towers of a model that compares images and sentences."""

from pathlib import Path

import pytest
import torch

from openvse.datasets import open_questions
from openvse.errors import RecipeError
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from tests.naming import names
from tests.tiny import Recorder, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_recipe, answering_tree, write_tiny_questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_questions(tmp_path_factory.mktemp("questions"))
    run_recipe(answering_recipe(folder), folder / "base")
    return folder


@pytest.mark.medium
def test_it_goes_on_with_an_answerer(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    left_out = {"embed_dim", "image", "text", "fusion"}
    tree = {key: value for key, value in tree.items() if key not in left_out} | {"start": str(questions / "base")}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    records = {record["kind"]: record for record in read_metrics(tmp_path / "run")}
    own = [r for r in read_metrics(questions / "base") if r["kind"] == "validation"]
    assert records["before"]["accuracy"] == pytest.approx(max(record["accuracy"] for record in own))
    assert records["difference"]["accuracy"] == pytest.approx(
        records["validation"]["accuracy"] - records["before"]["accuracy"]
    )
    assert {"  fusion: taken", "  classifier: taken", "  text_layer: taken"} <= set(watcher.notes)


@pytest.mark.medium
def test_answers_keep_their_rows_in_another_order(questions: Path, tmp_path: Path) -> None:
    lines = (questions / "metadata.jsonl").read_text().splitlines()
    doubled = [line for line in lines if "black" in line] * 3
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "metadata.jsonl").write_text("\n".join(lines + doubled).replace("white", "pink") + "\n")
    tree = answering_tree(folder, phases=[{"epochs": 1}])
    tree |= {"start": str(questions / "base"), "optimizer": {"learning_rate": 1e-12}}
    tree["data"]["features"] = str(questions / "features")
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert "  classifier: taken (1 answers added to 4)" in watcher.notes
    old = load_as(Answerer, questions / "base" / "best")
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    asked = open_questions(f"question_folder:{folder}", require_images=False).split("train").questions
    answers = AnswerVocabulary.from_answers([question.answers for question in asked], min_count=1).answers
    assert set(answers) - set(old.answers.answers) == {"pink"}
    assert [answer for answer in answers if answer != "pink"] != [a for a in old.answers.answers if a != "white"]
    for row, answer in enumerate(answers):
        if answer in old.answers.answers:
            theirs = old.classifier.weight[old.answers.answers.index(answer)].detach()
            torch.testing.assert_close(state["classifier.weight"][row], theirs, rtol=0, atol=1e-8)


@pytest.mark.medium
def test_its_towers_come_from_a_model_of_retrieval(questions: Path, tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "pairs")
    run_recipe(tiny_recipe(corpus, phases=[{"epochs": 1}]), corpus / "run")
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    del tree["embed_dim"]
    tree |= {"image": {"aggregator": "tokens"}, "text": {"aggregator": "tokens"}, "start": str(corpus / "run")}
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert {"  image.encoder: taken", "  fusion: new (the start has none)"} <= set(watcher.notes)
    assert any(note.startswith("  text.encoder: taken (") and "words added" in note for note in watcher.notes)
    assert any(names(note, "start", "validation") for note in watcher.notes)
    assert load_as(Answerer, tmp_path / "run" / "best").provenance["start"]["name"] == "run"


@pytest.mark.medium
def test_a_side_that_the_start_lacks_is_refused(questions: Path, tmp_path: Path) -> None:
    tree = answering_tree(questions, phases=[{"epochs": 1}])
    own = {"image": None, "fusion": None, "start": str(questions / "base")}
    blind = {**tree, **own, "text": {"aggregator": {"name": "score_attention", "num_heads": 2}}}
    run_recipe(parse_recipe(blind), tmp_path / "blind")
    with pytest.raises(RecipeError, match="image.*blind"):
        parse_recipe({key: value for key, value in tree.items() if key != "image"} | {"start": str(tmp_path / "blind")})
    retrieval = {key: tiny_tree(tmp_path)[key] for key in ("name", "objective", "data", "training")}
    with pytest.raises(RecipeError, match="similarity.*'start'"):
        parse_recipe({**retrieval, "start": str(questions / "base"), "similarity": "start"})
