"""Files of answers, as VQA's evaluation server reads them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from quiz import quiz

from openvse.corpus import QuestionSet
from openvse.errors import DataError
from openvse.vqa.predict import read_results, write_results


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
    ("content", "message"),
    [
        ("half a fi", "not a list of"),
        ("3", "not a list of"),
        ('[{"question_id": 1}]', "not a list of"),
        ('["yes"]', "not a list of"),
        (
            '[{"question_id": 1, "answer": "x"}, {"question_id": "1", "answer": "y"}]',
            "question 1 is answered twice",
        ),
        ("[]", r"no answer to 3 of the 3 questions of quiz .first: 262148000.; answer all of them"),
    ],
)
def test_files_that_do_not_fit(tmp_path, asked, content, message):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_results(path, asked)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_number(tmp_path, asked):
    with pytest.raises(DataError, match="it cannot be read"):
        read_results(tmp_path / "none.json", asked)
    with pytest.raises(DataError, match="quiz: 1 predictions for 3 questions"):
        write_results(tmp_path / "x.json", asked, ["yes"])
    assert list(tmp_path.iterdir()) == []
