"""open_questions finds out what a path holds; open_corpus takes question sets too."""

from pathlib import Path

import pytest
from test_question_folder import lay_out, write_lines

from openvse.datasets import open_corpus, open_questions
from openvse.errors import DataError, RecipeError
from openvse_papers.datasets.published import holds_questions
from tests.naming import names, refusal
from tests.papers.datasets.test_daquar import all_pairs
from tests.papers.datasets.test_vqa2 import make_vqa


def own(root: Path) -> Path:
    lay_out(root, "a.jpg")
    write_lines(root / "metadata.jsonl", {"file_name": "a.jpg", "question": "who?", "answer": "me"})
    return root


def test_kinds_are_detected(tmp_path):
    assert open_questions(make_vqa(tmp_path / "v")).name == "vqa2"
    assert open_questions(str(all_pairs(tmp_path / "d"))).name == "daquar"
    assert open_questions(own(tmp_path / "mine")).name == "mine"
    assert open_questions(tmp_path / "mine" / "metadata.jsonl").name == "metadata"
    (tmp_path / "mine" / "q.CSV").write_text("image,question,answer\na.jpg,who?,you\n")
    assert open_questions(tmp_path / "mine" / "q.CSV").questions[0].answers == ("you",)


def test_a_kind_can_be_named(tmp_path):
    assert open_questions(f"question_folder:{own(tmp_path / 'my:own')}").image_ids == ("a.jpg",)
    assert open_questions(f"vqa2:{make_vqa(tmp_path / 'v')}").name == "vqa2"
    assert names(refusal(RecipeError, open_questions, f"vqa:{tmp_path}"), "'vqa'", "'vqa2'")


def test_options_are_passed_on(tmp_path):
    root = own(tmp_path)
    (root / "a.jpg").unlink()
    assert names(refusal(DataError, open_questions, root), "a.jpg")
    assert len(open_questions(root, require_images=False)) == 1


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{}/missing", ["missing"]),
        ("daquar:{}/missing", ["missing"]),
        ("{}/empty", ["metadata.jsonl", "metadata.csv"]),
        ("{}/empty/a.jpg", [".csv, .tsv"]),
    ],
)
def test_missing_and_empty(tmp_path, source, named):
    lay_out(tmp_path / "empty", "a.jpg")
    assert names(refusal(DataError, open_questions, source.format(tmp_path)), tmp_path, *named)


def test_a_question_set_is_a_corpus_to_extraction_and_checks(tmp_path):
    root = all_pairs(tmp_path / "d")
    for spec in (root, f"daquar:{root}"):
        corpus = open_corpus(spec)
        assert len(corpus) == 22 and corpus.captions[0] == "what is on the desk"
        assert corpus.split("test").image_ids == ("image1", "image2")
    for spec in (own(tmp_path / "mine"), f"question_folder:{tmp_path / 'mine'}"):
        assert open_corpus(spec).captions == ("who?",)
    (tmp_path / "mine" / "q.csv").write_text("image,Question,answer\na.jpg,you?,me\n")
    assert open_corpus(tmp_path / "mine" / "q.csv").captions == ("you?",)
    assert open_corpus(make_vqa(tmp_path / "v")).name == "vqa2"
    assert names(refusal(RecipeError, open_corpus, f"daqar:{root}"), "'daqar'", "'daquar'", "openvse list data")


@pytest.mark.parametrize(
    "line", ["", "{", "3", '{"file_name": "a.jpg", "captions": ["the question is open"]}', '{"question'], ids=str
)
def test_captions_are_no_questions(tmp_path, line):
    path = tmp_path / "metadata.jsonl"
    path.write_text(f"\n{line}\n")
    assert not holds_questions(path)
