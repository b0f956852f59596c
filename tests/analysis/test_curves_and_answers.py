"""Curves of runs, and answers side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openvse.analysis.answers import AnswersOf, analyze_answers, answer_all, pick_questions
from openvse.analysis.curves import analyze_training, read_validated
from openvse.errors import OpenVSEError
from openvse.tasks.recipes import parse_recipe
from openvse.training.kind import Request
from openvse.vqa.answers import AnswerVocabulary
from openvse.vqa.build import build_answerer
from tests.analysis.small import is_png, plain
from tests.tiny_questions import COLOURS, answering_tree, write_tiny_questions


def write_run(folder: Path, rsum: list[float], *, negatives: bool = True, metric: str = "rsum") -> Path:
    folder.mkdir(parents=True)
    lines = []
    for epoch, value in enumerate(rsum, start=1):
        lines.append({"kind": "train", "epoch": epoch, "global_step": 10 * epoch, "loss": 5.0 / epoch})
        if negatives:
            counts = {"ranking.i2t_num_negatives": 64.0 / epoch, "ranking.t2i_num_negatives": 32.0 / epoch}
            lines.append({"kind": "diagnostics", "epoch": epoch, "global_step": 10 * epoch, **counts})
        lines.append({"kind": "validation", "epoch": epoch, "global_step": 10 * epoch, metric: value})
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / "metrics.jsonl").write_text(text + '\n{"kind": "train", "epo')  # a line that is being written
    (folder / "recipe.yaml").write_text("name: x\n")
    (folder / "best").mkdir()
    (folder / "best" / "config.json").write_text("{}")
    return folder


@pytest.mark.medium
def test_curves_of_runs(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [100.0, 200.0, 150.0])
    two = write_run(tmp_path / "two", [120.0], negatives=False)
    found = analyze_training([str(one), str(two)])
    assert found.summary.rows == [("one", 3, 200.0, 2, "64", "11"), ("two", 1, 120.0, 1, "", "")]
    assert found.tables["validation"].rows == [
        ("one", 1, 100.0),
        ("one", 2, 200.0),
        ("one", 3, 150.0),
        ("two", 1, 120.0),
    ]
    assert found.tables["negatives"].rows[1] == ("one", "ranking", "t2i", 10, 32.0)
    written = found.write(tmp_path / "out")
    assert {path.name for path in written if path.suffix == ".png"} == {
        "training_validation.png", "training_loss.png", "training_negatives.png"
    }  # fmt: skip
    assert "RSUM on validation" in (tmp_path / "out" / "training_validation.svg").read_text()


def test_a_run_is_drawn_under_the_name_that_is_given(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", [1.0])
    odd = write_run(tmp_path / "rate=0.1", [1.0])
    rows = analyze_training([f"our method={plain}", str(odd)]).summary.rows
    assert [row[0] for row in rows] == ["our method", "rate=0.1"]


def test_runs_that_cannot_be_drawn(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [1.0], negatives=False)
    assert set(analyze_training([str(one)]).figures) == {"validation", "loss"}
    answering = write_run(tmp_path / "answering", [0.5], metric="accuracy")
    assert analyze_training([str(answering)]).summary.header[2] == "best accuracy"
    with pytest.raises(
        OpenVSEError, match=r"share no metric 'rsun' \(did you mean 'rsum'\?\) \(shared: rsum\)|rsun"
    ):
        analyze_training([str(one)], "rsun")
    with pytest.raises(OpenVSEError, match="metric"):
        analyze_training([str(one), str(answering)])
    with pytest.raises(OpenVSEError, match="named"):
        analyze_training([str(one), str(one)])
    for words, problem in (
        (["a=x", "a=y"], "a is named twice"),
        (["=x"], "'=x' cannot"),
        (["a="], "'a=' cannot"),
    ):
        with pytest.raises(OpenVSEError, match=problem):
            analyze_training(words)
    (one / "metrics.jsonl").write_text('{"kind": "train", "epoch": 1, "global_step": 1}\n')
    with pytest.raises(OpenVSEError, match="validation"):
        read_validated(str(one))
    (one / "metrics.jsonl").unlink()
    with pytest.raises(OpenVSEError, match="metrics.jsonl"):
        read_validated(str(one))


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
    with pytest.raises(OpenVSEError, match="questions"):
        answer_all({"c": plain()}, request)


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
