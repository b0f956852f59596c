"""The evaluation of models that answer questions, one by one and side by side, with baselines that see no image."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from jaxtyping import Float, Int

from openvse.corpus.trained_on import seen_in_training
from openvse.datasets.check import leakage_between_splits
from openvse.errors import DataError, ModelError, OpenVSEError
from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
from openvse.evaluation.metrics import Replicates, percentile_intervals, resampled_weights
from openvse.evaluation.report import (
    AnsweredQueries,
    AnsweredQuery,
    Findings,
    Shown,
    largest_changes,
    measured_table,
    one_per_image,
)
from openvse.features.store import FeatureStore, open_store, open_token_states
from openvse.output.documents import Document
from openvse.output.table import Table
from openvse.tokenization.vocabulary import split_words
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
from openvse_papers.vqa.answerer import Answerer, Predictions, predict, write_results
from openvse_papers.vqa.answers import (
    THRESHOLDS,
    AnswerVocabulary,
    QuestionSet,
    WordNet,
    answer_accuracy,
    answer_scores,
    are_votes,
    exact_match,
    find_wordnet,
    main_answers,
    wups,
)

AnswerScores: TypeAlias = dict[str, float]
"""Percentages: ``accuracy``, and ``accuracy_<kind>`` for each published kind of answer. Sets of answers also have
``exact_match`` and, if WordNet is installed, ``wups_0.9`` and ``wups_0.0``."""

TYPES_SHOWN = 20
"""The number of types of questions in the table. The JSON has all."""


@dataclass(frozen=True)
class AnswerProtocol:
    """How the evaluation was done.

    Attributes:
        name: the data set, and which part of it.
        num_questions: the number of questions that were scored: "all", and of each kind.
        num_images: the number of images that they are about.
        unanswered: the number of questions left out because they have no known answer.
        votes: whether the accuracy is VQA's. Otherwise an answer counts if it is one of the annotated answers.
        resamples: the number of bootstrap resamples. 0 means that no intervals were computed.
        wordnet: the source of the nouns of WUPS, or "".
    """

    name: str
    num_questions: Mapping[str, int]
    num_images: int
    unanswered: int
    votes: bool
    seed: int
    resamples: int
    wordnet: str = ""


@dataclass(frozen=True)
class QuestionType:
    """The number of questions of one published type, and the accuracy of the model on them, in percent."""

    num_questions: int
    accuracy: float


@dataclass(frozen=True, repr=False)
class AnswerReport(Document):
    """Scores with their protocol, intervals, baselines and limits.

    Attributes:
        protocol: how the evaluation was done.
        intervals: the lower and upper bound of each score, except for kinds so rare that they were never drawn.
        baselines: the scores of answers made without the image, by label.
        unknown: the percentage of questions without an answer in the model's vocabulary, or None without a vocabulary.
        ceiling: the scores of the best answers in the vocabulary, or empty.
        model: the fingerprint of the model, or empty.
        published: the published results of each label (paper and setting), under the same names as ``scores``.
        problems: the skipped items, one line each.
        question_types: the questions of each published type, the most frequent first. Empty if none is published.
    """

    scores: AnswerScores
    protocol: AnswerProtocol
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    baselines: Mapping[str, AnswerScores] = field(default_factory=dict)
    unknown: float | None = None
    ceiling: AnswerScores = field(default_factory=dict)
    model: str = ""
    published: Mapping[str, AnswerScores] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    question_types: Mapping[str, QuestionType] = field(default_factory=dict)

    def sections(self) -> list[str]:
        """Return the scores with the baselines' scores, the protocol, and the types of questions."""
        return [
            f"# Answers{f' to {self.protocol.name}' if self.protocol.name else ''}",
            measured_table("", [*self.scores], self.scores, self.intervals, self.beside()).to_markdown(),
            "\n".join(f"- {line}" for line in self.protocol_lines()),
            *self._types(),
        ]

    def beside(self) -> dict[str, AnswerScores]:
        """Return the figures to compare the scores with, by label: published results, baselines, and the limit."""
        limits = {"best answers of the vocabulary": self.ceiling} if self.ceiling else {}
        return {**self.published, **self.baselines, **limits}

    def _types(self) -> Iterator[str]:
        """Yield the table of question types, if there are any."""
        if self.question_types:
            shown = list(self.question_types.items())[:TYPES_SHOWN]
            rows = [[name, f"{each.num_questions:,}", f"{each.accuracy:.1f}"] for name, each in shown]
            yield "## By type of question"
            yield Table(["type", "questions", "accuracy"], rows).to_markdown()
            if more := len(self.question_types) - len(shown):
                yield f"{more} rarer types are in report.json."

    def protocol_lines(self) -> Iterator[str]:
        """Yield how the evaluation was done, a line at a time."""
        protocol = self.protocol
        kinds = [f"{kind} {count:,}" for kind, count in protocol.num_questions.items() if kind != "all"]
        listed = f" ({', '.join(kinds)})" if kinds else ""
        yield f"{protocol.num_questions['all']:,} questions about {protocol.num_images:,} images{listed}"
        if protocol.unanswered:
            yield f"{protocol.unanswered:,} questions without a known answer are left out"
        if protocol.votes:
            yield "accuracy: VQA's, the mean over all subsets without one annotator of min(agreeing / 3, 1)"
        else:
            yield "accuracy: the answer is one of the annotated answers. exact match: it is all of them"
            yield (f"WUPS: nouns from {protocol.wordnet}" if protocol.wordnet else "no WUPS: WordNet is not there")
        if self.unknown is not None:
            yield f"{self.unknown:.1f} % of the questions have no answer in the vocabulary"
        if protocol.resamples:
            yield f"intervals: bootstrap over images, {protocol.resamples:,} resamples, seed {protocol.seed}"
        if self.model:
            yield f"model {self.model}"


KINDS = ("yes/no", "number", "other")
"""The types of answers in VQA 2.0, in the order of its tables."""


def evaluate_answers(
    questions: QuestionSet,
    predictions: Sequence[str],
    *,
    training: QuestionSet | None = None,
    vocabulary: AnswerVocabulary | None = None,
    wordnet: WordNet | None = None,
    resamples: int = 1000,
    seed: int = 0,
    model: str = "",
    published: Mapping[str, AnswerScores] | None = None,
    exchanged: Sequence[str] | None = None,
) -> AnswerReport:
    """Score predicted answers.

    The questions determine whether the answers are votes (``vqa.answers.are_votes``). Otherwise they are sets, and the
    members of a predicted set are separated by ", ", as in DAQUAR's files.

    Args:
        questions: Q questions. Questions without an answer are left out.
        predictions: an answer to each question, in any spelling.
        training: the training questions, which add their most frequent answers as baselines.
        vocabulary: the answers of the model, for the share of questions without a known answer and the ceiling.
        wordnet: WordNet, which adds WUPS if the answers are sets.
        resamples: the number of resampled data sets for the intervals. 0 for none.
        model: the fingerprint of the model.
        published: published results to show for comparison, under the names of ``AnswerScores``.
        exchanged: the answer to each question about another image, which are a baseline, too.

    Raises:
        DataError: the numbers of predictions and questions differ, or no question has an answer.
    """
    scored = ScoredAnswers(questions, predictions, wordnet)
    drawn = scored.replicates(resamples=resamples, seed=seed)
    others = _baselines(training, scored.questions)
    if exchanged is not None:
        others = {"this model, images exchanged": tuple(exchanged[n] for n in scored.numbers), **others}
    protocol = AnswerProtocol(
        name=questions.name,
        num_questions={kind: int(rows.sum()) for kind, rows in scored.kinds.items()},
        num_images=len(scored.questions.image_ids),
        unanswered=len(questions) - len(scored.numbers),
        votes=scored.votes,
        seed=seed,
        resamples=resamples,
        wordnet=str(wordnet.folder) if wordnet and not scored.votes else "",
    )
    return AnswerReport(
        scores=scored.means(),
        protocol=protocol,
        intervals=score_intervals(drawn),
        baselines={label: _means(scored.score(answers)) for label, answers in others.items()},
        unknown=None if vocabulary is None else _unknown(vocabulary, scored.questions),
        ceiling={} if vocabulary is None else _ceiling(vocabulary, scored),
        model=model,
        published=published or {},
        problems=questions.problems,
        question_types=_question_types(scored.questions, scored.columns["accuracy"]),
    )


class ScoredAnswers:
    """Scores of predicted answers to the questions that have an answer, from 0 to 1, one by one.

    The score of a kind is NaN for questions of other kinds.

    Attributes:
        numbers: the positions of the scored questions.
        kinds: the questions of each kind, and "all".
        columns: each score of each question.
    """

    def __init__(self, questions: QuestionSet, predictions: Sequence[str], wordnet: WordNet | None = None) -> None:
        if len(predictions) != len(questions):
            raise DataError(f"{questions.name}: {len(predictions)} answers to {len(questions)} questions: give as many")
        self.numbers = [number for number, question in enumerate(questions.questions) if question.answers]
        if not self.numbers:
            raise DataError(f"{questions.name}: no question has an answer: take a split whose answers are published")
        self.questions = questions.select(np.array(self.numbers, dtype=np.int64))
        self._answers = [question.answers for question in self.questions.questions]
        self._wordnet, self.votes = wordnet, are_votes(self._answers)
        kinds = np.array([question.kind for question in self.questions.questions], dtype=object)
        there = set(kinds.tolist())
        named = [kind for kind in (*KINDS, *sorted(there - {*KINDS, ""})) if kind in there]
        self.kinds = {"all": np.ones(len(kinds), dtype=bool), **{kind: kinds == kind for kind in named}}
        self.predictions = tuple(predictions[number] for number in self.numbers)
        self.columns = self.score(self.predictions)

    def means(self) -> AnswerScores:
        """Return the mean of each score in percent."""
        return _means(self.columns)

    def replicates(self, *, resamples: int, seed: int) -> Replicates:
        """Return the mean scores on every resample. See ``score_replicates``."""
        return score_replicates(self.columns, self.questions.images_of(), resamples=resamples, seed=seed)

    def score(self, predictions: Sequence[str]) -> dict[str, Float[np.ndarray, "Q"]]:
        """Return each score of any answers to the same questions."""
        if self.votes:
            return self._by_kind(answer_accuracy(predictions, self._answers, votes=True))
        sets = [prediction.split(", ") for prediction in predictions]
        members = np.array([len(members) for members in sets])
        question = np.repeat(np.arange(len(sets)), members)
        given = [self._answers[number] for number in question]
        right = answer_accuracy([member for members in sets for member in members], given, votes=False)
        scores = self._by_kind(np.bincount(question, right, minlength=len(sets)) / members)
        scores["exact_match"] = exact_match(sets, self._answers)
        if self._wordnet is not None:
            similar = self._wordnet.similarity
            scores |= {f"wups_{t}": wups(sets, self._answers, similar, threshold=t) for t in THRESHOLDS}
        return scores

    def _by_kind(self, worth: Float[np.ndarray, "Q"]) -> dict[str, Float[np.ndarray, "Q"]]:
        return {
            f"accuracy_{kind}".removesuffix("_all"): np.where(rows, worth, np.nan) for kind, rows in self.kinds.items()
        }


def _question_types(questions: QuestionSet, worth: Float[np.ndarray, "Q"]) -> dict[str, QuestionType]:
    """Return the accuracy of each published type of question, the most frequent type first."""
    types = np.array([question.asks for question in questions.questions])
    names, of_question, counts = np.unique(types, return_inverse=True, return_counts=True)
    means = 100.0 * np.bincount(of_question, worth) / counts
    order = np.argsort(-counts, kind="stable")
    return {str(names[n]): QuestionType(int(counts[n]), float(means[n])) for n in order.tolist() if names[n]}


def _means(columns: Mapping[str, Float[np.ndarray, "Q"]]) -> AnswerScores:
    return {name: 100.0 * float(np.nanmean(column)) for name, column in columns.items()}


def most_frequent_answers(training: QuestionSet, questions: QuestionSet, *, num_words: int = 0) -> tuple[str, ...]:
    """Answer each question with the most frequent answer to training questions that begin with the same words.

    A training question counts once, for its most frequent answer. If answers are not votes, it counts once for each
    answer. Of equally frequent answers, the first in alphabetical order counts. If no training question begins with
    these words, one word less is compared.

    Args:
        training: questions with answers.
        questions: Q questions.
        num_words: the number of first words that must agree. With 0, all questions get the same answer.

    Returns:
        An answer to each question, in its normal form.

    Raises:
        DataError: no training question has an answer.
    """
    votes = are_votes(question.answers for question in training.questions)
    counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for question in training.questions:
        words = tuple(split_words(question.text))
        for answer in main_answers(question.answers, votes=votes):
            for length in range(min(num_words, len(words)) + 1):
                counts[words[:length]][answer] += 1
    if not counts:
        raise DataError(f"{training.name}: no question has an answer: give training questions with answers")
    best = {start: min(found, key=lambda one: (-found[one], one)) for start, found in counts.items()}
    starts = [tuple(split_words(question.text)[:num_words]) for question in questions.questions]
    return tuple(
        next(best[start[:length]] for length in range(len(start), -1, -1) if start[:length] in best) for start in starts
    )


def _baselines(training: QuestionSet | None, questions: QuestionSet) -> dict[str, tuple[str, ...]]:
    """Return the answers that need no image, by label."""
    if training is None:
        return {}
    starts = {"": 0, " by the first two words": 2, " by the first four words": 4}
    return {
        f"most frequent answer{label}": most_frequent_answers(training, questions, num_words=num_words)
        for label, num_words in starts.items()
    }


def _unknown(vocabulary: AnswerVocabulary, questions: QuestionSet) -> float:
    """Return the percentage of questions to which the vocabulary has no answer."""
    known = [any(answer in vocabulary for answer in question.answers) for question in questions.questions]
    return 100.0 * (1.0 - float(np.mean(known)))


def _ceiling(vocabulary: AnswerVocabulary, scored: ScoredAnswers) -> AnswerScores:
    """Score the best known answer to each question. WUPS has no such simple ceiling."""
    best = []
    for question in scored.questions.questions:
        worth = answer_scores(question.answers, votes=scored.votes)
        known = [answer for answer in worth if answer in vocabulary]
        best.append(max(known, key=worth.__getitem__, default=""))
    scores = _means(scored.score(best))
    return {name: score for name, score in scores.items() if not name.startswith("wups")}


def score_replicates(
    columns: Mapping[str, Float[np.ndarray, "Q"]], images: Int[np.ndarray, "Q"], *, resamples: int, seed: int
) -> Replicates:
    """Return each mean score in percent on every resample. NaN where no question that counts was drawn.

    The questions about an image are not independent evidence, so images are drawn along with their questions. The same
    images and seed draw the same resamples, so that the replicates of two models are pairs. A question whose score is
    NaN does not count.
    """
    if not resamples:
        return {}
    worth = np.column_stack([np.bincount(images, np.nan_to_num(column)) for column in columns.values()])
    asked = np.column_stack([np.bincount(images, ~np.isnan(column)) for column in columns.values()])
    weights = resampled_weights(len(worth), resamples, np.random.default_rng(seed))
    with np.errstate(invalid="ignore"):  # a kind of which no question was drawn
        means = np.concatenate([100.0 * (drawn @ worth) / (drawn @ asked) for drawn in weights])
    return dict(zip(columns, means.T, strict=True))


def score_intervals(replicates: Replicates) -> dict[str, tuple[float, float]]:
    """Return the percentile interval of each mean score over the resamples that have it, in percent."""
    known = {name: drawn[~np.isnan(drawn)] for name, drawn in replicates.items()}
    return percentile_intervals([{name: drawn for name, drawn in known.items() if len(drawn)}])


PREDICTIONS = "predictions.json"


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
        raise OpenVSEError("--folds, --query-bank and --calibrate are for retrieval: leave them out for questions")
    if request.exchanged and not model.sees:
        raise OpenVSEError("--exchanged is for a model that looks at images, but this reads questions: leave it out")
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
        note = "the questions have no answers to compare with, so nothing is measured: write predictions by --out"
        return AnswersEvaluation(None, (*problems, note), answered, answers, probabilities)
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
        exchanged=answer_questions(model, answered.exchange_images(), store, request)[1] if request.exchanged else None,
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
    scored = ScoredAnswers(evaluation.questions.select(asked), answers)
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
        one = ScoredAnswers(asked, answers)
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
        raise ModelError(f"{run.source} has several models, but those that answer are compared one by one: name one")
    return model, None if model.image is None else open_store(request.store(number), model.image.encoder)
