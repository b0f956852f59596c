"""Answers side by side."""

from pathlib import Path

import pytest

from openvse.errors import OpenVSEError
from openvse.tasks.recipes import parse_recipe
from openvse.training.kind import Request
from openvse_papers.analysis.hits import AnswersOf, analyze_answers, answer_all, pick_questions
from openvse_papers.analysis.opening import named_sources
from openvse_papers.vqa.answerer import build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from tests.naming import refusal
from tests.papers.analysis.small import is_png, plain
from tests.tiny_questions import COLOURS, answering_tree, write_tiny_questions


def test_a_model_has_the_name_that_is_given() -> None:
    assert named_sources(["our method=a/b", "rate/c"]) == {"our method": "a/b", "rate/c": "rate/c"}
    for words in (["a=x", "a=y"], ["=x"], ["a="], ["x", "x"]):
        refusal(OpenVSEError, named_sources, words)


@pytest.fixture(scope="module")
def quiz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_questions(tmp_path_factory.mktemp("quiz"))


def answerer(seed: int):
    recipe = parse_recipe(answering_tree(Path()) | {"seed": seed})
    answers = AnswerVocabulary(COLOURS, votes=False)
    return build_answerer(recipe, questions=["what colour is the dog cat cup ball"], answers=answers).eval()


def test_answers_side_by_side(quiz: Path) -> None:
    models = {"a": answerer(0), "b": answerer(1)}
    request = Request(f"question_folder:{quiz}", "test", (quiz / "features",))
    questions, rows = answer_all(models, request)
    assert len(questions) == 8 and [row.name for row in rows] == ["a", "b"]
    for row in rows:
        right = [float(said in q.answers) for said, q in zip(row.answers, questions, strict=True)]
        assert list(row.accuracy) == right
    found = analyze_answers(questions, rows, count=2)
    assert found.tables[""].header[4:] == ("answer of a", "accuracy of a", "answer of b", "accuracy of b")
    assert found.summary.rows[0][2] == pytest.approx(100 * sum(rows[0].accuracy) / 8)
    alone = sum(a > 0 and b == 0 for a, b in zip(rows[0].accuracy, rows[1].accuracy, strict=True))
    assert found.summary.rows[0][3] == alone
    refusal(OpenVSEError, lambda: answer_all({"c": plain()}, request))


def test_questions_that_differ_come_first() -> None:
    rows = [
        AnswersOf("a", ("x",) * 6, (1.0, 1.0, 0.0, 0.0, 1.0, 0.0)),
        AnswersOf("b", ("x",) * 6, (1.0, 0.0, 0.0, 1.0, 1.0, 0.0)),
    ]
    assert pick_questions(rows, 2) == [1, 3]
    assert len(pick_questions(rows, 4)) == 4 and {1, 3} <= set(pick_questions(rows, 4))
    assert pick_questions(rows, 6, "random") == [0, 1, 2, 3, 4, 5]


@pytest.mark.medium
def test_answers_are_drawn(quiz: Path, tmp_path: Path) -> None:
    request = Request(f"question_folder:{quiz}", "test", (quiz / "features",))
    questions, rows = answer_all({"a": answerer(0)}, request)
    written = analyze_answers(questions, rows, count=3).write(tmp_path)
    svg = written[2].read_text()
    assert is_png(written[1]) and "truth: " in svg and "what colour is the" in svg
