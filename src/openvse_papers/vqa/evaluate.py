"""The evaluation of models that answer questions, one by one and side by side, and its part of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from openvse.corpus.trained_on import seen_in_training
from openvse.datasets.check import leakage_between_splits
from openvse.errors import DataError, ModelError, OpenVSEError
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
from openvse.evaluation.findings import (
    AnsweredQueries,
    AnsweredQuery,
    Findings,
    Shown,
    largest_changes,
    one_per_image,
)
from openvse.features.store import FeatureStore, open_store, open_token_states
from openvse.training.kind import (
    Compared,
    Evaluation,
    LoadedRun,
    Request,
    expect_data,
    published_for,
    same_items,
    under_protocol,
)
from openvse.types import FeatureSource
from openvse_papers.datasets.published import open_questions
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import are_votes, main_answers
from openvse_papers.vqa.evaluator import evaluate_answers, score_answers
from openvse_papers.vqa.predict import Predictions, predict, write_results
from openvse_papers.vqa.questions import QuestionSet
from openvse_papers.vqa.report import AnswerReport
from openvse_papers.vqa.wordnet import WordNet, find_wordnet

PREDICTIONS = "predictions.json"
NO_ANSWERS = (
    "the questions have no answers to compare with, so nothing is measured: write predictions by --out"
)


@dataclass(frozen=True)
class AnswersEvaluation(Evaluation):
    """Predictions with their probabilities, and a report. The report is None if no question has an answer."""

    report: AnswerReport | None
    questions: QuestionSet
    answers: tuple[str, ...]
    probabilities: tuple[float, ...]

    def write(self, folder: Path) -> list[Path]:
        write_results(folder / PREDICTIONS, self.questions, self.answers)
        return [*super().write(folder), folder / PREDICTIONS]

    def score(self) -> tuple[str, float]:
        """Return the accuracy. Raise ModelError where there are no answers to compare with."""
        return "accuracy", self._measured().scores["accuracy"]

    def findings(self, count: int) -> Findings:
        """Return the figures, and the questions that the model answers right or wrong most confidently."""
        report = self._measured()
        return Findings(
            data=report.protocol.name,
            size={"num_questions": len(self.questions)},
            metrics=report.scores,
            intervals=report.intervals,
            beside=report.beside(),
            notes=tuple(report.protocol_lines()),
            problems=report.problems,
            queries=(_queries(self, count),) if count else (),
            digest=self.questions.identity().digest,
        )

    def _measured(self) -> AnswerReport:
        if self.report is None:
            raise ModelError("the questions have no answers to compare with: give data that have")
        return self.report


def evaluate_answerer(models: Sequence[Answerer], request: Request) -> AnswersEvaluation:
    """Answer the questions of a split by one model, and compare with the answers of people."""
    request, protocol = under_protocol(request, "vqa")
    model, *others = models
    if others or request.rerank:
        raise OpenVSEError("a model that answers questions is evaluated by itself: name one model")
    if request.folds > 1 or request.query_bank or request.calibrate:
        raise OpenVSEError(
            "--folds, --query-bank and --calibrate are for retrieval: leave them out for a model that answers questions"
        )
    if request.exchanged and not model.sees:
        raise OpenVSEError(
            "--exchanged is for a model that looks at images, but this one reads only questions: leave it out"
        )
    if model.sees:
        request.check_stores(1)
    store = None if model.image is None else open_store(request.store(0), model.image.encoder)
    questions = open_asked(request, require_images=model.sees and store is None)
    expect_data(protocol, questions.name)
    chosen = request.part(questions)
    answered, answers, probabilities = answer_questions(model, chosen, store, request)
    remarks = [seen_in_training(model.provenance, answered.as_corpus()).describe("the model")]
    remarks += leakage_between_splits(questions.as_corpus(), request.split)
    remarks += [] if protocol is None else [protocol.mismatch(len(answered), 0)]
    warnings = tuple(filter(None, remarks))
    problems = (*warnings, *answered.problems)
    if not any(question.answers for question in answered.questions):
        return AnswersEvaluation(None, (*problems, NO_ANSWERS), answered, answers, probabilities)
    report = evaluate_answers(
        replace(answered, problems=problems),
        answers,
        training=_training(questions),
        vocabulary=model.answers,
        wordnet=WordNet(wordnet) if (wordnet := find_wordnet()) else None,
        resamples=request.resamples,
        seed=request.seed,
        model=model.fingerprint,
        published=published_for(model.provenance, {"num_questions": len(answered)}),
        exchanged=answer_questions(model, answered.exchange_images(), store, request)[1]
        if request.exchanged
        else None,
    )
    return AnswersEvaluation(report, warnings, answered, answers, probabilities)


def open_asked(request: Request, *, require_images: bool) -> QuestionSet:
    """Open all splits of the questions of a request."""
    return open_questions(request.data, require_images=require_images, allow_outside=request.allow_outside)


def answer_questions(
    model: Answerer, questions: QuestionSet, store: FeatureSource | None, request: Request
) -> Predictions:
    """Answer questions with the stores of a request."""
    return predict(
        model,
        questions,
        store,
        text_features=open_token_states(request.text_features, model.text.encoder),
        batch_size=request.batch_size,
        progress=request.progress,
    )


def _training(questions: QuestionSet) -> QuestionSet | None:
    """Return the training questions, whose most frequent answers are the baseline. None if all are test questions."""
    try:
        return questions.split("train")
    except DataError:
        return None


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
            answers=(Shown(answers[number]),),
            hits=(is_right,),
            right=None if is_right else right,
            results=(f"accuracy {worth[number]:.2f}, probability {probability:.2f}",),
        )

    images = scored.questions.images_of().tolist()
    ends = [n for n in sure if worth[n] >= 1], [n for n in sure if worth[n] == 0]
    best, worst = (tuple(map(shown, one_per_image(some, images, count))) for some in ends)
    return AnsweredQueries("Questions, the most confident answers first", best, worst)


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
    every = open_asked(request, require_images=not request.features)
    asked = request.part(every)
    questions: QuestionSet | None = None
    for number, run in enumerate(loaded):
        _opened(run, number, request)
    runs: list[MeasuredRun] = []
    for number, run in enumerate(loaded):
        source, (model, store) = run.source, _opened(run, number, request)
        answered, answers, _ = answer_questions(model, asked, store, request)
        asked = same_items(runs, source, "answer", "questions", asked, answered)
        one = score_answers(asked, answers)
        drawn = one.replicates(resamples=request.resamples, seed=request.seed)
        line = seen_in_training(model.provenance, asked.as_corpus()).describe(source)
        queries = {"questions": one.columns["accuracy"]}
        measured = one.means(), drawn, queries, (line,) if line else (), one.predictions
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
    """Return the model of a run and its store. Raise OpenVSEError for several models or an unusable store."""
    model, *others = cast("tuple[Answerer, ...]", run.models)
    if others:
        raise ModelError(
            f"{run.source} has several models, and a model that answers questions is compared by itself: name one model"
        )
    return model, None if model.image is None else open_store(request.store(number), model.image.encoder)
