"""A report of answers: scores, kinds, intervals over images, baselines, limits."""

import json

import numpy as np
import pytest
from quiz import quiz
from tiny_wordnet import write_wordnet

from openvse.errors import DataError
from openvse_papers.vqa.answers import AnswerVocabulary, WordNet
from openvse_papers.vqa.evaluate import evaluate_answers, most_frequent_answers
from tests.naming import names, refusal

VOTED = quiz(
    ("a", "is it red?", ["yes"] * 9 + ["no"], "yes/no"),
    ("a", "how many?", ["two"] * 2 + ["3"] * 8, "number"),
    ("b", "is it?", ["no"] * 10, "yes/no"),
    ("b", "what?", ["cat"] * 10, "other"),
    ("b", "untold?", []),
)
SETS = quiz(
    ("a", "what is it?", ["chair"]),
    ("a", "what are they?", ["sofa", "table"]),
    ("b", "how many?", ["2"]),
    ("b", "what is there?", ["lamp"]),
)


def test_accuracy_by_kind():
    report = evaluate_answers(VOTED, ["yes", "2", "no", "dog", "anything"], resamples=0)
    assert list(report.scores) == ["accuracy", "accuracy_yes/no", "accuracy_number", "accuracy_other"]
    assert report.scores == pytest.approx(
        {"accuracy": 65, "accuracy_yes/no": 100, "accuracy_number": 60, "accuracy_other": 0}
    )
    protocol = report.protocol
    assert protocol.num_questions == {"all": 4, "yes/no": 2, "number": 1, "other": 1}
    assert (protocol.num_images, protocol.unanswered, protocol.votes) == (2, 1, True)
    assert report.intervals == {} and report.baselines == {} and report.unknown is None


def test_sets_of_answers(tmp_path):
    answers = ["Chair", "table, sofa", "3", "couch"]
    report = evaluate_answers(SETS, answers, wordnet=WordNet(write_wordnet(tmp_path)), resamples=0)
    # sofa and lamp: the tiny WordNet knows no lamp
    assert report.scores == pytest.approx({"accuracy": 50, "exact_match": 50, "wups_0.9": 50, "wups_0.0": 50})
    one_of_two = evaluate_answers(SETS, ["sofa", "sofa", "", "sofa, lamp"], resamples=0)
    assert one_of_two.scores == pytest.approx({"accuracy": 37.5, "exact_match": 0})
    assert one_of_two.protocol.wordnet == "" and report.protocol.wordnet == str(tmp_path)


def test_baselines_and_limits():
    training = quiz(("t", "what is this?", ["chair"]), ("t", "how many?", ["2"]), ("t", "how many men?", ["2"]))
    vocabulary = AnswerVocabulary.from_answers([q.answers for q in training.questions], min_count=1)
    report = evaluate_answers(SETS, ["x"] * 4, training=training, vocabulary=vocabulary, resamples=0)
    assert report.baselines["most frequent answer"]["accuracy"] == 25
    assert report.baselines["most frequent answer by the first two words"]["accuracy"] == 50
    assert report.unknown == 50
    assert report.ceiling == {"accuracy": 50, "exact_match": 50}


def test_the_ceiling_of_votes():
    report = evaluate_answers(VOTED, ["x"] * 5, vocabulary=AnswerVocabulary(["2", "no"], votes=True), resamples=0)
    # 0.3 for "no" to the first, 0.6 for "2" to the second, 1 to the third, nothing for the cat
    assert report.ceiling["accuracy"] == pytest.approx(100 * (0.3 + 0.6 + 1 + 0) / 4)
    assert report.unknown == 25


def test_intervals_are_over_images():
    """Ten questions about each of 40 images, all right or all wrong: the images are the evidence."""
    many = quiz(*((f"{number // 10}", "?", ["yes"]) for number in range(400)))
    predictions = ["yes" if number // 10 % 2 else "no" for number in range(400)]
    report = evaluate_answers(many, predictions, resamples=2000, seed=3)
    low, high = report.intervals["accuracy"]
    by_images = 100 * 2 * 1.96 * np.sqrt(0.25 / 40)
    assert high - low == pytest.approx(by_images, rel=0.15)
    assert low < 50 < high
    again = evaluate_answers(many, predictions, resamples=2000, seed=3)
    assert again.intervals == report.intervals
    few = [evaluate_answers(many, predictions, resamples=10, seed=seed).intervals for seed in range(3)]
    assert few[0] != few[1] or few[0] != few[2]


def test_a_rare_kind_has_an_interval():
    report = evaluate_answers(VOTED, ["yes"] * 5, resamples=50)
    assert report.intervals["accuracy_number"] == (0.0, 0.0)
    assert all(low <= high for low, high in report.intervals.values())
    once = [evaluate_answers(VOTED, ["yes"] * 5, resamples=1, seed=seed) for seed in range(8)]
    assert any("accuracy_number" not in drawn.intervals for drawn in once)
    assert all("NaN" not in drawn.to_json() and "nan" not in drawn.to_markdown() for drawn in once)


def test_the_page_and_the_file(tmp_path):
    vocabulary = AnswerVocabulary(["yes", "no"], votes=True)
    report = evaluate_answers(
        VOTED, ["yes"] * 5, training=VOTED, vocabulary=vocabulary, resamples=20, model="abc",
        published={"a paper": {"accuracy": 62.43}},
    )  # fmt: skip
    page = (report.save(tmp_path / "r") / "report.md").read_text()
    assert "# Answers to quiz" in page and "|  | accuracy | yes/no | number | other |" in page
    assert "| **this model** | **25.0** | **50.0** | **0.0** | **0.0** |" in page
    assert "| a paper | 62.4 |  |  |  |" in page and "| most frequent answer |" in page
    assert names(page, 4, 2, "yes/no 2, number 1, other 1")
    assert "- 1 questions without a known answer are left out" in page
    assert names(page, "50.0 %", "vocabulary")
    assert names(page, "20 resamples", "seed 0") and "- model abc" in page
    told = json.loads((tmp_path / "r" / "report.json").read_text())
    assert told["scores"]["accuracy_yes/no"] == 50 and told["protocol"]["votes"] is True
    assert "WUPS" not in page
    assert names(evaluate_answers(SETS, ["x"] * 4, resamples=0).to_markdown(), "WUPS", "WordNet")


def test_what_does_not_fit_is_refused():
    assert names(refusal(DataError, evaluate_answers, SETS, ["yes"]), "quiz", "1", "4")
    assert names(refusal(DataError, lambda: evaluate_answers(quiz(("a", "who?", [])), ["me"])), "quiz")


TRAINING = quiz(
    ("a", "How many dogs?", ["two"]),
    ("a", "how many cats?", ["2"]),
    ("b", "how old is it?", ["3"]),
    ("b", "what colour?", ["red", "white"]),
    ("c", "what is it?", ["a chair"]),
    ("c", "what is there?", ["chair"]),
)
ASKED = quiz(("d", "How MANY birds?", []), ("d", "how old?", []), ("d", "what is new?", []), ("d", "who?", []))


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
        ("a", "x?", ["yes"] * 10), ("b", "y?", ["no"] * 6 + ["yes"] * 4), ("c", "z?", ["no"] * 6 + ["nope"] * 4)
    )
    assert most_frequent_answers(votes, ASKED)[0] == "no"


def test_no_answers():
    assert names(refusal(DataError, most_frequent_answers, ASKED, ASKED), "quiz")
