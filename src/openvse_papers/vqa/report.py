"""The result of an evaluation of answers, with everything that is needed to interpret it correctly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from openvse.evaluation.report import measured_table
from openvse.output.documents import Document
from openvse.output.table import Table

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
            yield (
                f"WUPS: nouns from {protocol.wordnet}"
                if protocol.wordnet
                else "no WUPS: WordNet is not there"
            )
        if self.unknown is not None:
            yield f"{self.unknown:.1f} % of the questions have no answer in the vocabulary"
        if protocol.resamples:
            yield f"intervals: bootstrap over images, {protocol.resamples:,} resamples, seed {protocol.seed}"
        if self.model:
            yield f"model {self.model}"
