"""The most frequent answers, counted by hand."""

import pytest
from quiz import quiz

from openvse.errors import DataError
from openvse.vqa.evaluator import most_frequent_answers

TRAINING = quiz(
    ("a", "How many dogs?", ["two"]),
    ("a", "how many cats?", ["2"]),
    ("b", "how old is it?", ["3"]),
    ("b", "what colour?", ["red", "white"]),
    ("c", "what is it?", ["a chair"]),
    ("c", "what is there?", ["chair"]),
)
ASKED = quiz(
    ("d", "How MANY birds?", []), ("d", "how old?", []), ("d", "what is new?", []), ("d", "who?", [])
)


def test_by_the_first_words():
    assert most_frequent_answers(TRAINING, ASKED) == ("2",) * 4
    assert most_frequent_answers(TRAINING, ASKED, num_words=1) == ("2", "2", "chair", "2")
    assert most_frequent_answers(TRAINING, ASKED, num_words=2) == ("2", "3", "chair", "2")
    assert most_frequent_answers(TRAINING, ASKED, num_words=5) == ("2", "3", "chair", "2")


def test_ties_go_to_the_alphabet():
    tied = quiz(("a", "x?", ["red"]), ("a", "y?", ["blue"]))
    assert most_frequent_answers(tied, ASKED.select(ASKED.images_of()[:1])) == ("blue",)


def test_a_vote_counts_once_a_question():
    votes = quiz(
        ("a", "x?", ["yes"] * 10),
        ("b", "y?", ["no"] * 6 + ["yes"] * 4),
        ("c", "z?", ["no"] * 6 + ["nope"] * 4),
    )
    assert most_frequent_answers(votes, ASKED)[0] == "no"


def test_no_answers():
    with pytest.raises(DataError, match="quiz: no question has an answer; give training questions"):
        most_frequent_answers(ASKED, ASKED)
