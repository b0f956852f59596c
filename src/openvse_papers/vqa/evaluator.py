"""Computes a report from predicted answers and questions, with baselines that do not see the image."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError
from openvse.evaluation.metrics import Replicates, percentile_intervals, resampled_weights
from openvse.tokenization.word_splitters import split_words
from openvse_papers.vqa.accuracy import THRESHOLDS, answer_accuracy, exact_match, wups
from openvse_papers.vqa.answers import AnswerVocabulary, answer_scores, are_votes, main_answers
from openvse_papers.vqa.questions import QuestionSet
from openvse_papers.vqa.report import AnswerProtocol, AnswerReport, AnswerScores, QuestionType
from openvse_papers.vqa.wordnet import WordNet

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
    scored = questions.select(np.array(answered := _answered(questions, predictions), dtype=np.int64))
    scorer = _Scorer(scored, wordnet)
    columns = scorer.columns([predictions[number] for number in answered])
    drawn = score_replicates(columns, scored.images_of(), resamples=resamples, seed=seed)
    others = _baselines(training, scored, None if exchanged is None else [exchanged[n] for n in answered])
    protocol = AnswerProtocol(
        name=questions.name,
        num_questions=scorer.counts(),
        num_images=len(scored.image_ids),
        unanswered=len(questions) - len(answered),
        votes=scorer.votes,
        seed=seed,
        resamples=resamples,
        wordnet=str(wordnet.folder) if wordnet and not scorer.votes else "",
    )
    return AnswerReport(
        scores=_means(columns),
        protocol=protocol,
        intervals=score_intervals(drawn),
        baselines={label: _means(scorer.columns(answers)) for label, answers in others.items()},
        unknown=None if vocabulary is None else _unknown(vocabulary, scored),
        ceiling={} if vocabulary is None else _ceiling(vocabulary, scored, scorer),
        model=model,
        published=published or {},
        problems=questions.problems,
        question_types=_question_types(scored, columns["accuracy"]),
    )


@dataclass(frozen=True)
class ScoredAnswers:
    """Each score of each question that has an answer, from 0 to 1. NaN where a question does not count."""

    questions: QuestionSet
    columns: Mapping[str, Float[np.ndarray, "Q"]]
    predictions: tuple[str, ...]

    def means(self) -> AnswerScores:
        """Return the mean of each score in percent."""
        return _means(self.columns)

    def replicates(self, *, resamples: int, seed: int) -> Replicates:
        """Return the mean scores on every resample. See ``score_replicates``."""
        return score_replicates(self.columns, self.questions.images_of(), resamples=resamples, seed=seed)


def score_answers(questions: QuestionSet, predictions: Sequence[str]) -> ScoredAnswers:
    """Score predicted answers question by question, like ``evaluate_answers``."""
    answered = _answered(questions, predictions)
    scored, given = questions.select(np.array(answered, dtype=np.int64)), [predictions[n] for n in answered]
    return ScoredAnswers(scored, _Scorer(scored, None).columns(given), tuple(given))


class _Scorer:
    """Scores any predictions for the same questions. The score of a kind is NaN for questions of other kinds."""

    def __init__(self, questions: QuestionSet, wordnet: WordNet | None) -> None:
        self._answers = [question.answers for question in questions.questions]
        self._wordnet = wordnet
        self.votes = are_votes(self._answers)
        kinds = np.array([question.kind for question in questions.questions], dtype=object)
        there = Counter(kinds.tolist())
        named = [kind for kind in (*KINDS, *sorted(set(there) - {*KINDS, ""})) if kind in there]
        self._kinds = {"all": np.ones(len(kinds), dtype=bool), **{kind: kinds == kind for kind in named}}

    def counts(self) -> dict[str, int]:
        """Return the number of all questions ("all") and of each kind."""
        return {kind: int(rows.sum()) for kind, rows in self._kinds.items()}

    def columns(self, predictions: Sequence[str]) -> dict[str, Float[np.ndarray, "Q"]]:
        """Return each score of each question."""
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
            for threshold in THRESHOLDS:
                scores[f"wups_{threshold}"] = wups(
                    sets, self._answers, self._wordnet.similarity, threshold=threshold
                )
        return scores

    def _by_kind(self, worth: Float[np.ndarray, "Q"]) -> dict[str, Float[np.ndarray, "Q"]]:
        return {
            f"accuracy_{kind}".removesuffix("_all"): np.where(rows, worth, np.nan)
            for kind, rows in self._kinds.items()
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


def _answered(questions: QuestionSet, predictions: Sequence[str]) -> list[int]:
    """Return the positions of the questions that can be scored."""
    if len(predictions) != len(questions):
        raise DataError(
            f"{questions.name}: {len(predictions)} predictions for {len(questions)} questions: give one for each"
        )
    answered = [number for number, question in enumerate(questions.questions) if question.answers]
    if not answered:
        raise DataError(
            f"{questions.name}: no question has an answer to compare with: evaluate a split whose answers are published"
        )
    return answered


def most_frequent_answers(
    training: QuestionSet, questions: QuestionSet, *, num_words: int = 0
) -> tuple[str, ...]:
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
    best = {
        start: min(answers, key=lambda answer: (-answers[answer], answer))
        for start, answers in counts.items()
    }
    starts = [tuple(split_words(question.text)[:num_words]) for question in questions.questions]
    return tuple(
        next(best[start[:length]] for length in range(len(start), -1, -1) if start[:length] in best)
        for start in starts
    )


def _baselines(
    training: QuestionSet | None, questions: QuestionSet, exchanged: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """Return the answers that need no image, and the answers about exchanged images, by label."""
    starts = {} if training is None else {"": 0, " by the first two words": 2, " by the first four words": 4}
    baselines = {
        f"most frequent answer{label}": most_frequent_answers(training, questions, num_words=num_words)
        for label, num_words in starts.items()
        if training is not None
    }
    return baselines if exchanged is None else {"this model, images exchanged": tuple(exchanged), **baselines}


def _unknown(vocabulary: AnswerVocabulary, questions: QuestionSet) -> float:
    """Return the percentage of questions to which the vocabulary has no answer."""
    known = [any(answer in vocabulary for answer in question.answers) for question in questions.questions]
    return 100.0 * (1.0 - float(np.mean(known)))


def _ceiling(vocabulary: AnswerVocabulary, questions: QuestionSet, scorer: _Scorer) -> AnswerScores:
    """Score the best known answer to each question. WUPS has no such simple ceiling."""
    best = []
    for question in questions.questions:
        worth = answer_scores(question.answers, votes=scorer.votes)
        known = [answer for answer in worth if answer in vocabulary]
        best.append(max(known, key=worth.__getitem__, default=""))
    scores = _means(scorer.columns(best))
    return {name: score for name, score in scores.items() if not name.startswith("wups")}


def score_replicates(
    columns: Mapping[str, Float[np.ndarray, "Q"]],
    images: Int[np.ndarray, "Q"],
    *,
    resamples: int,
    seed: int,
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
