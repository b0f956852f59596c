"""Questions: checked when built, split by their pictures, and a corpus to everything that knows corpora."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from openvse.errors import DataError
from openvse.tokenization.vocabulary import Vocabulary
from openvse_papers.vqa.answers import Question, QuestionSet, build_questions
from tests.naming import names, refusal


def ask(number: int, image: str = "a.jpg", **fields) -> Question:
    question = Question(f"q{number}", image, Path(image), f"question {number}?", ("yes",))
    return replace(question, **fields)


def build(*questions: Question, **options) -> QuestionSet:
    return build_questions("toy", questions, require_images=False, **options)


def ids(questions: QuestionSet) -> list[str]:
    return [question.question_id for question in questions.questions]


def test_pictures_stand_in_the_order_of_the_questions():
    found = build(ask(0, "b.jpg"), ask(1, "a.jpg"), ask(2, "b.jpg"))
    assert (len(found), found.image_ids, found.problems) == (3, ("b.jpg", "a.jpg"), ())
    assert found.image_paths == (Path("b.jpg"), Path("a.jpg"))
    assert found.images_of().dtype == np.int64
    np.testing.assert_array_equal(found.images_of(), [0, 1, 0])


def test_white_space_and_blank_answers_are_tidied():
    question = build(ask(0, text=" how\tmany \n chairs ", answers=[" two ", " ", "2"])).questions[0]
    assert (question.text, question.answers) == ("how many chairs", ("two", "2"))


def test_what_cannot_be_used_is_counted_and_skipped(tmp_path):
    (tmp_path / "a.jpg").touch()
    here, nowhere = {"path": tmp_path / "a.jpg"}, {"path": tmp_path / "x" / "b.jpg", "image": "b.jpg"}
    found = [
        ask(0, **here),
        ask(0, **here, text="the same identifier?"),
        ask(1, **here, text="  "),
        ask(2, **here, answers=[" "]),
        ask(3, **nowhere),
        ask(4, **nowhere),
    ]
    kept = build_questions("toy", found)
    assert (ids(kept), kept.questions[0].text) == (["q0"], "question 0?")
    assert kept.problems == (
        "skipped 1 question(s) with the identifier of an earlier one (first: q0)",
        f"skipped 2 question(s) about 1 image(s) that are not there (first: {tmp_path / 'x' / 'b.jpg'})",
        "skipped 1 question(s) without a text (first: q1)",
        "skipped 1 question(s) without an answer (first: q2)",
    )
    assert ids(build_questions("toy", found, require_images=False)) == ["q0", "q3", "q4"]


def test_answers_may_be_unpublished():
    test = build(ask(0, split="train"), ask(1, "b.jpg", answers=(), split="test"))
    assert (len(test), test.problems, test.questions[1].answers) == (2, (), ())
    assert build(ask(0, answers=()), ask(1, answers=())).problems == ()
    train = build(ask(0, split="train"), ask(1, answers=(), split="train"))
    assert train.problems == ("skipped 1 question(s) without an answer (first: q1)",)


def test_nothing_left():
    assert names(refusal(DataError, build), "toy")
    assert names(refusal(DataError, build, ask(0, text="")), 1, "q0")


def test_a_picture_in_two_splits_stays_in_the_last():
    found = build(
        ask(0, "a.jpg", split="train"),
        ask(1, "a.jpg", split="val"),
        ask(2, "b.jpg", split="training"),
        ask(3, "a.jpg", split="train"),
    )
    assert ids(found) == ["q1", "q2"]
    assert [question.split for question in found.questions] == ["validation", "train"]
    (line,) = found.problems
    assert line.startswith("leakage: 1 image(s)") and "without 2 record(s) (first: a.jpg)" in line


def test_splits_by_any_name():
    found = build(ask(0, "a.jpg", split="train"), ask(1, "b.jpg", split="dev"), ask(2, "c.jpg"))
    for name in ("dev", "val", "validation"):
        chosen = found.split(name)
        assert (chosen.name, ids(chosen), chosen.image_ids) == ("toy/validation", ["q1"], ("b.jpg",))
    assert ids(found.split("val").split("validation")) == ["q1"]
    assert names(refusal(DataError, found.split, "test"), "'test'", 1, 1, 0)
    assert names(refusal(DataError, found.split, "foo"), "'foo'")
    assert names(refusal(DataError, build, ask(0, split="foo")), "'foo'")


def test_without_splits_the_hash_of_the_picture_decides():
    found = build(*(ask(number, f"{number % 100}.jpg") for number in range(300)))
    parts = [found.split(name) for name in ("train", "validation", "test")]
    assert [len(part.image_ids) for part in parts] == [80, 10, 10]
    assert [len(part) for part in parts] == [240, 30, 30]
    assert not set(parts[0].image_ids) & set(parts[2].image_ids)
    # The same pictures with sentences fall into the same splits.
    assert set(found.as_corpus().split("test").image_ids) == set(parts[2].image_ids)


def test_pictures_without_a_split_are_divided_as_those_with_sentences_are():
    """Where none is in train, each goes to a split that no picture has. A question has the split of its picture."""
    asked = [ask(number, f"{number % 40}.jpg", split="test" * (number % 40 < 4)) for number in range(80)]
    found = build(*asked, ask(80, "0.jpg"))
    parts = {name: found.split(name) for name in ("train", "validation", "test")}
    assert [len(part.image_ids) for part in parts.values()] == [32, 4, 4]
    assert ids(parts["test"])[-1] == "q80" and parts["train"].name == "toy/train"
    corpus = found.as_corpus()
    assert all(corpus.split(name).image_ids == part.image_ids for name, part in parts.items())


def test_questions_are_the_captions_of_a_corpus():
    found = build(ask(0, "b.jpg", split="train"), ask(1, "a.jpg", split="test"), ask(2, "b.jpg", split="train"))
    corpus = found.as_corpus()
    assert (corpus.image_ids, corpus.splits) == (("b.jpg", "a.jpg"), ("train", "test"))
    assert corpus.captions == ("question 0?", "question 1?", "question 2?")
    assert corpus.relevance.images.tolist() == [0, 1, 0]
    assert corpus.relevance.texts.tolist() == [0, 1, 2]
    assert corpus.split("train").captions == ("question 0?", "question 2?")
    assert len(Vocabulary.from_captions(corpus.split("train").captions)) == 5 + 3


def test_selection_and_the_pictures_that_are_left():
    found = build(ask(0, "b.jpg"), ask(1, "a.jpg"), ask(2, "b.jpg"))
    assert ids(found.select(np.array([2, 1]))) == ["q2", "q1"]
    left = found.about({"b.jpg"})
    assert (ids(left), left.image_ids, left.images_of().tolist()) == (["q0", "q2"], ("b.jpg",), [0, 0])
