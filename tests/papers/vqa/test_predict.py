"""A question set through a model, and files of answers as VQA's evaluation server reads them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from quiz import quiz

from openvse.datasets import open_questions
from openvse.errors import DataError, StoreError
from openvse.features.store import FeatureStore
from openvse.tasks.recipes import parse_recipe
from openvse_papers.vqa.answerer import (
    Answerer,
    build_answerer,
    predict,
    predict_batches,
    question_dataset,
    read_results,
    write_results,
)
from openvse_papers.vqa.answers import AnswerVocabulary, QuestionSet
from tests.naming import names, refusal
from tests.tiny_questions import COLOURS, answering_tree, write_tiny_questions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_questions(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def questions(folder: Path) -> QuestionSet:
    return open_questions(f"question_folder:{folder}", require_images=False).split("train")


@pytest.fixture(scope="module")
def model(questions: QuestionSet) -> Answerer:
    words = [question.text for question in questions.questions]
    answers = AnswerVocabulary(COLOURS, votes=False)
    return build_answerer(parse_recipe(answering_tree(Path())), questions=words, answers=answers).eval()


@pytest.mark.medium
def test_each_question_once_in_its_order(folder: Path, questions: QuestionSet, model: Answerer) -> None:
    store = FeatureStore(folder / "features")
    found = predict(model, questions, store)
    assert found.questions == questions
    assert {*found.answers} <= {*COLOURS} and all(0 < each < 1 for each in found.probabilities)
    backwards = questions.select(torch.arange(len(questions)).flip(0).numpy())
    turned = predict(model, backwards, store, batch_size=5)
    assert turned.questions == backwards and turned.answers == found.answers[::-1]
    assert turned.probabilities == pytest.approx(found.probabilities[::-1], abs=1e-5)


def test_the_mode_is_left_as_it_was(folder: Path, questions: QuestionSet, model: Answerer) -> None:
    _, dataset = question_dataset(model, questions, FeatureStore(folder / "features"))
    model.train()
    first, second = (torch.cat([logits for _, _, logits in predict_batches(model, dataset)]) for _ in range(2))
    assert model.training and torch.equal(first, second) and not first.requires_grad
    model.eval()


def test_what_a_store_lacks_is_left_out(folder: Path, questions: QuestionSet, model: Answerer, tmp_path: Path) -> None:
    store = FeatureStore(folder / "features")
    other = open_questions(f"question_folder:{write_tiny_questions(tmp_path, train=30)}", require_images=False)
    some = other.split("train")
    found = predict(model, some, store)
    assert len(found.questions) == len(found.answers) == 26 * 2 < len(some)  # the store has 26 images
    gone = some.about({f"{number:03d}.jpg" for number in range(27, 30)})
    assert names(refusal(StoreError, predict, model, gone, store), " 3 ", "027.jpg")


def test_not_one_image(questions: QuestionSet, make_photos, caplog: pytest.LogCaptureFixture) -> None:
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32, "augmentation": "none"}
    tree = answering_tree(Path()) | {"image": {"encoder": encoder, "aggregator": "tokens"}}
    answers = AnswerVocabulary(COLOURS, votes=False)
    model = build_answerer(parse_recipe(tree), questions=["what is it"], answers=answers).eval()
    with pytest.raises(DataError, match="train"):
        predict(model, questions)  # the files are not there
    assert "000.jpg" in caplog.text


@pytest.fixture
def asked() -> QuestionSet:
    found = quiz(("a", "who?", []), ("b", "how many?", []), ("b", "what?", []))
    names = ("262148000", "image1#0", "007")
    renamed = tuple(replace(q, question_id=name) for q, name in zip(found.questions, names, strict=True))
    return replace(found, questions=renamed)


def test_the_published_format(tmp_path, asked):
    path = tmp_path / "new" / "results.json"
    write_results(path, asked, ["a café", "2", "x"])
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"question_id": 262148000, "answer": "a café"},
        {"question_id": "image1#0", "answer": "2"},
        {"question_id": "007", "answer": "x"},
    ]
    assert read_results(path, asked) == ("a café", "2", "x")
    assert read_results(path, asked.select(np.array([2, 0]))) == ("x", "a café")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("half a fi", []),
        ("3", []),
        ('[{"question_id": 1}]', []),
        ('["yes"]', []),
        ('[{"question_id": 1, "answer": "x"}, {"question_id": "1", "answer": "y"}]', [1]),
        ("[]", [3, 3, 262148000]),
    ],
)
def test_files_that_do_not_fit(tmp_path, asked, content, named):
    path = tmp_path / "results.json"
    path.write_text(content)
    assert names(refusal(DataError, read_results, path, asked), path, *named)


def test_a_missing_file_and_a_wrong_number(tmp_path, asked):
    assert names(refusal(DataError, read_results, tmp_path / "none.json", asked), "none.json")
    assert names(refusal(DataError, write_results, tmp_path / "x.json", asked, ["yes"]), "quiz", "1", "3")
    assert list(tmp_path.iterdir()) == []
