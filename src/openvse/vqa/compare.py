"""Answerers side by side on the same questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from openvse.corpus import seen_in_training
from openvse.datasets import open_questions
from openvse.errors import DataError, ModelError
from openvse.evaluation import AnsweredQueries, AnsweredQuery, Comparison, MeasuredRun, Row, Shown
from openvse.evaluation.findings import largest_changes
from openvse.features import open_store
from openvse.training.kind import LoadedRun, Request
from openvse.vqa.answerer import Answerer
from openvse.vqa.answers import are_votes, main_answers
from openvse.vqa.evaluate import answer_questions
from openvse.vqa.evaluator import ScoredAnswers, score_answers


@dataclass(frozen=True)
class ComparedAnswerers:
    """Models on the same questions; see ``training.kind.Compared``."""

    request: Request
    runs: tuple[MeasuredRun, ...]
    scored: tuple[ScoredAnswers, ...]

    @cached_property
    def _votes(self) -> bool:
        return are_votes([question.answers for question in self.scored[0].questions.questions])

    def comparison(self, rows: Sequence[Row]) -> Comparison:
        """Return a comparison of rows of these runs."""
        questions = self.scored[0].questions
        return Comparison(
            name=questions.name,
            size={"images": len(questions.image_ids), "questions": len(questions)},
            seed=self.request.seed,
            resamples=self.request.resamples,
            rows=tuple(rows),
            problems=questions.problems,
        )

    def examples(self, first: Row, second: Row, count: int) -> list[AnsweredQueries]:
        """Return the questions whose accuracies differ most; answers are those of the first run of each row."""
        gains = second.queries()["questions"] - first.queries()["questions"]
        better, worse = (
            tuple(self._example(int(number), first, second) for number in numbers)
            for numbers in largest_changes(gains, count)
        )
        return [AnsweredQueries("Questions", better, worse)]

    def _example(self, number: int, first: Row, second: Row) -> AnsweredQuery:
        question = self.scored[0].questions.questions[number]
        answers = [self._scored(row).predictions[number] for row in (first, second)]
        worth = [float(row.queries()["questions"][number]) for row in (first, second)]
        return AnsweredQuery(
            query=Shown(question.text, question.path),
            right=Shown(", ".join(main_answers(question.answers, votes=self._votes))),
            found=(Shown(answers[0]), Shown(answers[1])),
            results=(f"answer, accuracy {worth[0]:.2f}", f"answer, accuracy {worth[1]:.2f}"),
            hits=(worth[0] >= 1, worth[1] >= 1),
        )

    def _scored(self, row: Row) -> ScoredAnswers:
        return next(s for run, s in zip(self.runs, self.scored, strict=True) if run is row.runs[0])


def _only_model(run: LoadedRun) -> Answerer:
    if len(run.models) > 1:
        raise ModelError(
            f"{run.source} has several models, and a model that answers questions is compared by itself: name one model"
        )
    return cast(Answerer, run.models[0])


def compare_answerers(loaded: Iterable[LoadedRun], request: Request) -> ComparedAnswerers:
    """Answer the same questions with each model, one model in memory at a time.

    Args:
        loaded: the runs, each of one answerer.
        request: what to compare on; ``request.features`` holds one store for all models, or one a model.

    Raises:
        OpenVSEError: the data or a store cannot be used, folds are asked for, or the models cannot answer the same
            questions.
    """
    if request.folds > 1:
        raise DataError("--folds is for retrieval: leave it out for models that answer questions")
    every = open_questions(
        request.data, require_images=not request.features, allow_outside=request.allow_outside
    )
    asked = request.part(every)
    runs: list[MeasuredRun] = []
    scored: list[ScoredAnswers] = []
    for number, run in enumerate(loaded):
        source, model = run.source, _only_model(run)
        store = None if model.image is None else open_store(request.store(number), model.image.encoder)
        kept, answers, _ = answer_questions(model, asked, store, request)
        if runs and len(kept) < len(asked):
            raise DataError(
                f"{source} can answer {len(kept)} of the {len(asked)} questions that the runs before it answer: name "
                f"it first, or extract its features from the same images"
            )
        asked = kept
        one = score_answers(asked, answers)
        drawn = one.replicates(resamples=request.resamples, seed=request.seed)
        line = seen_in_training(model.provenance, asked.as_corpus()).describe(source)
        queries = {"questions": one.columns["accuracy"]}
        warnings = (line,) if line else ()
        runs.append(MeasuredRun(source, model.fingerprint, one.means(), drawn, queries, warnings))
        scored.append(one)
    return ComparedAnswerers(request, tuple(runs), tuple(scored))
