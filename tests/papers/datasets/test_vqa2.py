"""VQA 2.0: the owners' JSON files, as they are published."""

import json
from pathlib import Path
from typing import Any

import pytest

from openvse.errors import DataError
from openvse_papers.datasets.published import detect_vqa2, open_vqa2
from openvse_papers.vqa.answers import are_votes
from tests.naming import names, refusal

QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"
ANNOTATIONS = "v2_mscoco_{}_annotations.json"


def question(number: int, image: int, text: str) -> dict[str, Any]:
    return {"image_id": image, "question": text, "question_id": number}


def annotation(number: int, image: int, answers: list[str], kind: str = "other") -> dict[str, Any]:
    votes = [
        {"answer": answer, "answer_confidence": "yes", "answer_id": place}
        for place, answer in enumerate(answers, start=1)
    ]
    return {
        "question_type": "what is",
        "multiple_choice_answer": answers[0],
        "answers": votes,
        "image_id": image,
        "answer_type": kind,
        "question_id": number,
    }


def write(path: Path, key: str, entries: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"info": {"year": 2017, "version": "2.0"}, "license": {"name": "CC BY 4.0"}, "data_subtype": "x"}
    path.write_text(json.dumps({**about, "task_type": "Open-Ended", "data_type": "mscoco", key: entries}))


def make_vqa(root: Path, folder: str = "") -> Path:
    """Lay out two training questions, two of validation and one of the test."""
    at = root / folder
    train = [question(9000, 9, "How many cookies can be seen?"), question(9001, 9, "Is it ripe?")]
    val = [question(42000, 42, "What colour?"), question(73000, 73, "What is it?")]
    write(at / QUESTIONS.format("train2014"), "questions", train)
    write(at / QUESTIONS.format("val2014"), "questions", val)
    write(at / QUESTIONS.format("test2015"), "questions", [question(1000, 1, "Who?")])
    votes = [annotation(9001, 9, ["yes"] * 9 + ["no"], "yes/no"), annotation(9000, 9, ["2"] * 10, "number")]
    write(at / ANNOTATIONS.format("train2014"), "annotations", votes)
    votes = [annotation(42000, 42, ["red", "dark red"] * 5), annotation(73000, 73, ["cat"] * 10)]
    write(at / ANNOTATIONS.format("val2014"), "annotations", votes)
    for part, number in (("train2014", 9), ("val2014", 42), ("val2014", 73), ("test2015", 1)):
        (root / part).mkdir(exist_ok=True)
        (root / part / f"COCO_{part}_{number:012d}.jpg").touch()
    return root


@pytest.mark.parametrize("folder", ["", "annotations", "questions"])
def test_the_three_parts(tmp_path, folder):
    root = make_vqa(tmp_path, folder)
    assert detect_vqa2(root)
    found = open_vqa2(root)
    assert (found.name, found.problems) == ("vqa2", ())
    first, second = found.split("train").questions
    assert (first.question_id, first.text) == ("9000", "How many cookies can be seen?")
    assert first.image_id == second.image_id == "COCO_train2014_000000000009.jpg"
    assert first.path == tmp_path / "train2014" / "COCO_train2014_000000000009.jpg"
    assert (first.answers, first.kind) == (("2",) * 10, "number")
    assert (second.answers, second.kind) == (("yes",) * 9 + ("no",), "yes/no")
    colour, _ = found.split("val").questions
    assert (colour.answers, colour.kind, colour.split) == (("red", "dark red") * 5, "other", "validation")
    (who,) = found.split("test").questions
    assert (who.image_id, who.answers, who.kind) == ("COCO_test2015_000000000001.jpg", (), "")
    assert are_votes(question.answers for question in found.questions)


def test_pictures_may_lie_below_images(tmp_path):
    root = make_vqa(tmp_path)
    (root / "images").mkdir()
    for part in ("train2014", "val2014", "test2015"):
        (root / part).rename(root / "images" / part)
    assert open_vqa2(root).questions[0].path.is_file()


def test_a_part_alone_and_test_dev(tmp_path):
    root = make_vqa(tmp_path)
    for part in ("train2014", "val2014"):
        (root / QUESTIONS.format(part)).unlink()
    (root / QUESTIONS.format("test2015")).rename(root / QUESTIONS.format("test-dev2015"))
    found = open_vqa2(root)
    assert [(q.question_id, q.split) for q in found.questions] == [("1000", "test")]


def test_what_does_not_fit_is_counted(tmp_path):
    root = make_vqa(tmp_path)
    (root / "val2014" / "COCO_val2014_000000000042.jpg").unlink()
    train = [question(9000, 9, "How many?"), question(9000, 9, "Again?"), question(9002, 9, "No answer?")]
    write(root / QUESTIONS.format("train2014"), "questions", train)
    found = open_vqa2(root)
    assert [q.question_id for q in found.questions] == ["9000", "73000", "1000"]
    repeated, missing, unanswered, stray = found.problems
    assert names(repeated, 1, 9000)
    assert missing.startswith("skipped 1 question(s) about 1 image(s) that are not there (first: ")
    assert names(unanswered, 1, 9002)
    assert names(stray, 1, 9001)
    assert len(open_vqa2(root, require_images=False).image_ids) == 4


def test_missing_files(tmp_path):
    assert not detect_vqa2(tmp_path)
    assert names(refusal(DataError, open_vqa2, tmp_path), "v2_OpenEnded_mscoco_train2014_questions.json")
    root = make_vqa(tmp_path)
    for part in ("train2014", "val2014", "test2015"):
        (root / part).rename(root / f"{part}_elsewhere")
    assert names(refusal(DataError, open_vqa2, root), "train2014/")
    assert len(open_vqa2(root, require_images=False)) == 5
    (root / ANNOTATIONS.format("val2014")).unlink()
    refused = refusal(DataError, open_vqa2, root, require_images=False)
    assert names(refused, "val2014_questions.json", "v2_mscoco_val2014_ann")


@pytest.mark.parametrize("content", ["{", "[]", '{"questions": [3]}', '{"questions": [{"image_id": "x"}]}'])
def test_another_format(tmp_path, content):
    root = make_vqa(tmp_path)
    (root / QUESTIONS.format("train2014")).write_text(content)
    assert names(refusal(DataError, open_vqa2, root), "train2014_questions.json", "VQA", "2.0")
