from dataclasses import replace

import pytest
from quiz import quiz

from openvse.errors import DataError
from openvse_papers.vqa.evaluate import evaluate_answers


def test_no_question_keeps_its_image_and_images_are_used_once() -> None:
    questions = quiz(*((f"i{n % 7}", f"what is {n}", ["x"]) for n in range(21)))
    moved = questions.exchange_images(seed=3)
    for before, after in zip(questions.questions, moved.questions, strict=True):
        assert after == replace(before, image_id=after.image_id, path=after.path)
        assert after.image_id != before.image_id
        assert str(after.path) == after.image_id
    pairs = {(b.image_id, a.image_id) for b, a in zip(questions.questions, moved.questions, strict=True)}
    assert len(pairs) == 7 == len({after for _, after in pairs})
    assert moved == questions.exchange_images(seed=3) != questions.exchange_images(seed=4)


def test_one_image_cannot_be_exchanged() -> None:
    with pytest.raises(DataError, match="quiz"):
        quiz(("i", "what", ["x"]), ("i", "who", ["y"])).exchange_images()


def test_types_of_questions_and_exchanged_images_in_a_report() -> None:
    questions = quiz(("a", "what is", ["x"]), ("b", "what is", ["y"]), ("c", "is it", ["yes"]), ("c", "why", ["z"]))
    asked = tuple(
        replace(question, asks=kind)
        for question, kind in zip(questions.questions, ("what is", "what is", "is it", ""), strict=True)
    )
    report = evaluate_answers(
        replace(questions, questions=asked), ["x", "x", "yes", "z"], resamples=0, exchanged=["y", "y", "no", "z"]
    )
    types = {name: (each.num_questions, each.accuracy) for name, each in report.question_types.items()}
    assert types == {"what is": (2, 50.0), "is it": (1, 100.0)}
    assert report.baselines["this model, images exchanged"]["accuracy"] == 50.0
    assert "| what is | 2 | 50.0 |" in report.to_markdown()
