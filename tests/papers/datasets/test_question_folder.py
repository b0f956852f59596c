"""Questions of one's own: metadata beside the pictures."""

import json
from pathlib import Path

import pytest

from openvse.errors import DataError
from openvse_papers.datasets.published import open_question_folder
from tests.naming import names, refusal


def lay_out(root: Path, *names: str) -> Path:
    for name in names or ("a.jpg", "b.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def write_lines(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def test_a_line_a_question(tmp_path):
    root = lay_out(tmp_path)
    write_lines(
        root / "metadata.jsonl",
        {"file_name": "a.jpg", "question": "how many dogs?", "answers": ["2", "two"], "split": "train"},
        {"file_name": "a.jpg", "question": "red?", "answer": "yes", "kind": "yes/no", "split": "train"},
        {"file_name": "b.jpg", "question": "how old?", "answer": 3, "question_id": 17, "split": "val"},
        {"file_name": "b.jpg", "question": "who is it?", "split": "test"},
    )
    found = open_question_folder(root)
    # b.jpg is in two splits, and stays in the later.
    assert "leakage: 1 image(s)" in found.problems[0]
    first, second, fourth = found.questions
    assert (first.question_id, first.image_id, first.path) == ("a.jpg#0", "a.jpg", root / "a.jpg")
    assert (first.answers, second.answers, second.kind) == (("2", "two"), ("yes",), "yes/no")
    assert (fourth.question_id, fourth.answers, fourth.split) == ("b.jpg#1", (), "test")


def test_a_line_a_picture(tmp_path):
    root = lay_out(tmp_path)
    asked = [{"question": "one?", "answer": 1}, {"question": "two?", "answers": [2, "zwei"], "question_id": "x"}]
    write_lines(root / "metadata.jsonl", {"file_name": "a.jpg", "questions": asked, "split": "train"})
    first, second = open_question_folder(root).questions
    assert (first.text, first.answers, first.question_id, first.split) == ("one?", ("1",), "a.jpg#0", "train")
    assert (second.answers, second.question_id) == (("2", "zwei"), "x")


def test_a_table(tmp_path):
    root = lay_out(tmp_path)
    (root / "metadata.csv").write_text(
        "file_name,question,answer,split,kind\n"
        "a.jpg,how many?,2,train,number\n"
        'b.jpg,"what, there?","a cup, blue",dev,\n'
        "a.jpg,how many?,two,train,number\n"
    )
    first, second = open_question_folder(root).questions
    assert (first.text, first.answers, first.kind, first.split) == ("how many?", ("2", "two"), "number", "train")
    assert (second.text, second.answers, second.split) == ("what, there?", ("a cup, blue",), "validation")


def test_a_file_alone(tmp_path):
    lay_out(tmp_path, "pics/a.jpg")
    path = tmp_path / "quiz.tsv"
    path.write_text("image\tquestion\tanswer\npics/a.jpg\twho?\tme\n")
    found = open_question_folder(path)
    assert (found.name, found.image_ids, found.questions[0].answers) == ("quiz", ("pics/a.jpg",), ("me",))
    lines = write_lines(tmp_path / "quiz.jsonl", {"file_name": "pics/a.jpg", "question": "who?", "answer": "me"})
    assert open_question_folder(lines).questions == found.questions


def test_folders_as_splits(tmp_path):
    for part in ("train", "test"):
        lay_out(tmp_path, f"{part}/a.jpg")
        entry = {"file_name": "a.jpg", "question": f"{part}?", "answer": "yes"}
        write_lines(tmp_path / part / "metadata.jsonl", entry)
    found = open_question_folder(tmp_path)
    assert [(q.image_id, q.split) for q in found.questions] == [("test/a.jpg", "test"), ("train/a.jpg", "train")]
    assert found.questions[0].question_id == "test/a.jpg#0" and found.questions[0].path.is_file()


def test_a_missing_picture_is_reported(tmp_path):
    root = lay_out(tmp_path, "a.jpg")
    entries = [{"file_name": name, "question": "?", "answer": "yes"} for name in ("a.jpg", "b.jpg")]
    write_lines(root / "metadata.jsonl", *entries)
    found = open_question_folder(root)
    assert found.image_ids == ("a.jpg",)
    assert found.problems[0].startswith("skipped 1 question(s) about 1 image(s)") and "b.jpg" in found.problems[0]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"file_name": "a.jpg"', []),
        ('{"file_name": "a.jpg", "captions": ["a dog"]}', ['"file_name"', '"question"']),
        ('{"question": "who?"}', ['"file_name"']),
        ('{"file_name": "a.jpg", "question": 3}', ["'a.jpg'"]),
        ('{"file_name": "a.jpg", "question": "?", "answers": [["x"]]}', ["'a.jpg'"]),
        ('{"file_name": "a.jpg", "question": "?", "answer": true}', ["'a.jpg'"]),
        ('{"file_name": "a.jpg", "questions": ["who?"]}', ["'a.jpg'"]),
        ("3", ['"file_name"']),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, named):
    (lay_out(tmp_path) / "metadata.jsonl").write_text(line)
    assert names(refusal(DataError, open_question_folder, tmp_path), "metadata.jsonl", 1, *named)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("file_name,caption\na.jpg,x\n", ["question"]),
        ("file_name,question\na.jpg,x\n", ["answer"]),
        ("file_name,question,answer,split\na.jpg,x?,1,train\na.jpg,x?,2,test\n", [3, "'x?'", "'a.jpg'"]),
    ],
)
def test_malformed_tables_are_named(tmp_path, table, named):
    refused = refusal(DataError, open_question_folder, lay_out(tmp_path))
    assert names(refused, "metadata.jsonl", "metadata.csv")
    (tmp_path / "metadata.csv").write_text(table)
    assert names(refusal(DataError, open_question_folder, tmp_path), "metadata.csv", *named)
