"""What a report shows of the evaluation of an answerer: its figures, and its most confident answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from openvse.errors import ModelError
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, Findings, Shown
from openvse.vqa.answers import are_votes, main_answers
from openvse.vqa.evaluate import AnswersEvaluation
from openvse.vqa.evaluator import score_answers


def findings_of(evaluation: AnswersEvaluation, count: int) -> Findings:
    """Return what a report shows of an evaluation.

    Args:
        evaluation: the evaluation of a model.
        count: the number of right and of wrong answers to show.

    Raises:
        ModelError: there are no answers to compare with.
    """
    report = evaluation.report
    if report is None:
        raise ModelError("the questions have no answers to compare with: give data that have")
    return Findings(
        data=report.protocol.name,
        size={"num_questions": len(evaluation.questions)},
        metrics=report.scores,
        intervals=report.intervals,
        beside=report.beside(),
        notes=tuple(report.protocol_lines()),
        problems=report.problems,
        queries=(_queries(evaluation, count),) if count else (),
    )


def _queries(evaluation: AnswersEvaluation, count: int) -> AnsweredQueries:
    asked = np.flatnonzero([bool(question.answers) for question in evaluation.questions.questions])
    answers = [evaluation.answers[number] for number in asked.tolist()]
    scored = score_answers(evaluation.questions.select(asked), answers)
    worth = scored.columns["accuracy"]
    sure = np.argsort(-np.array(evaluation.probabilities)[asked], kind="stable").tolist()
    votes = are_votes([question.answers for question in scored.questions.questions])

    def shown(number: int) -> AnsweredQuery:
        question, is_right = scored.questions.questions[number], bool(worth[number] >= 1)
        probability = evaluation.probabilities[int(asked[number])]
        right = Shown(", ".join(main_answers(question.answers, votes=votes)))
        return AnsweredQuery(
            query=Shown(question.text, question.path),
            found=(Shown(answers[number]),),
            hits=(is_right,),
            right=None if is_right else right,
            results=(f"accuracy {worth[number]:.2f}, probability {probability:.2f}",),
        )

    images = scored.questions.images_of().tolist()
    best = _different([number for number in sure if worth[number] >= 1], images, count)
    worst = _different([number for number in sure if worth[number] == 0], images, count)
    return AnsweredQueries(
        "Questions, the most confident answers first", *(tuple(map(shown, some)) for some in (best, worst))
    )


def _different(numbers: Sequence[int], images: Sequence[int], count: int) -> Iterator[int]:
    """Yield at most one question about each image."""
    seen: set[int] = set()
    for number in numbers:
        if images[number] not in seen and len(seen) < count:
            seen.add(images[number])
            yield number
