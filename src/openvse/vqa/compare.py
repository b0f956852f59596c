"""Answerers side by side on the same questions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

from openvse.corpus import QuestionSet, seen_in_training
from openvse.datasets import leakage_between_splits, open_questions
from openvse.errors import DataError, ModelError
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
from openvse.evaluation.findings import AnsweredQueries, AnsweredQuery, Shown, largest_changes
from openvse.features import FeatureStore, open_store
from openvse.training.kind import Compared, LoadedRun, Request
from openvse.vqa.answerer import Answerer
from openvse.vqa.answers import are_votes, main_answers
from openvse.vqa.evaluate import answer_questions
from openvse.vqa.evaluator import score_answers


def _examples(questions: QuestionSet, first: Row, second: Row, count: int) -> list[AnsweredQueries]:
    """Return the questions whose accuracies differ most."""
    votes = are_votes([question.answers for question in questions.questions])
    rows, worth = (first, second), [row.queries()["questions"] for row in (first, second)]

    def example(number: int) -> AnsweredQuery:
        question, scores = questions.questions[number], [float(each[number]) for each in worth]
        return AnsweredQuery(
            query=Shown(question.text, question.path),
            right=Shown(", ".join(main_answers(question.answers, votes=votes))),
            answers=tuple(Shown(row.runs[0].outcomes[number]) for row in rows),
            results=tuple(f"answer, accuracy {score:.2f}" for score in scores),
            hits=tuple(score >= 1 for score in scores),
        )

    changes = largest_changes(worth[1] - worth[0], count)
    better, worse = (tuple(example(int(number)) for number in numbers) for numbers in changes)
    return [AnsweredQueries("Questions", better, worse)]


def compare_answerers(loaded: Iterable[LoadedRun], request: Request) -> Compared:
    """Answer the same questions with each model, one model in memory at a time."""
    if request.folds > 1:
        raise DataError("--folds is for retrieval: leave it out for models that answer questions")
    every = open_questions(
        request.data, require_images=not request.features, allow_outside=request.allow_outside
    )
    asked = request.part(every)
    questions: QuestionSet | None = None
    for number, run in enumerate(loaded):
        _opened(run, number, request)
    runs: list[MeasuredRun] = []
    for number, run in enumerate(loaded):
        source, (model, store) = run.source, _opened(run, number, request)
        answered, answers, _ = answer_questions(model, asked, store, request)
        if runs and len(answered) < len(asked):
            raise DataError(
                f"{source} can answer {len(answered)} of the {len(asked)} questions that the runs before it answer: "
                f"name it first, or extract its features from the same images"
            )
        asked = answered
        one = score_answers(asked, answers)
        drawn = one.replicates(resamples=request.resamples, seed=request.seed)
        line = seen_in_training(model.provenance, asked.as_corpus()).describe(source)
        queries = {"questions": one.columns["accuracy"]}
        warnings = (line,) if line else ()
        measured = one.means(), drawn, queries, warnings, one.predictions
        runs.append(MeasuredRun(source, model.fingerprint, *measured))
        questions = questions or one.questions
    assert questions is not None
    frame = Comparison(
        name=questions.name,
        size={"images": len(questions.image_ids), "questions": len(questions)},
        seed=request.seed,
        resamples=request.resamples,
        problems=(*leakage_between_splits(every.as_corpus(), request.split), *questions.problems),
    )
    return Compared(tuple(runs), frame, partial(_examples, questions))


def _opened(run: LoadedRun, number: int, request: Request) -> tuple[Answerer, FeatureStore | None]:
    """Return the model of a run and its store; raise OpenVSEError if it has several models or the store is unusable."""
    model, *others = cast("tuple[Answerer, ...]", run.models)
    if others:
        raise ModelError(
            f"{run.source} has several models, and a model that answers questions is compared by itself: name one model"
        )
    return model, None if model.image is None else open_store(request.store(number), model.image.encoder)
