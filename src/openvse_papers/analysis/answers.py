"""Answers of several models to the same questions, side by side with the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from openvse.features.store import open_store
from openvse.model.base import Model
from openvse.output.figures import PAGE, blank, lines_of, marked, new_figure
from openvse.output.table import Table
from openvse.training.kind import Request
from openvse_papers.analysis.hits import shown_image
from openvse_papers.analysis.opening import only
from openvse_papers.analysis.result import Analysis
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.evaluate import answer_questions, open_asked
from openvse_papers.vqa.evaluator import score_answers
from openvse_papers.vqa.questions import Question

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "answers"
AnswerPick = Literal["differ", "random"]
_ACROSS = 4


@dataclass(frozen=True)
class AnswersOf:
    """The answers of one model to the questions of a set, and the accuracy of each."""

    name: str
    answers: tuple[str, ...]
    accuracy: tuple[float, ...]


def answer_all(models: Mapping[str, Model], request: Request) -> tuple[list[Question], list[AnswersOf]]:
    """Answer the questions of a split with each model. Questions that one model cannot answer are left out for all."""
    answerers = only(Answerer, models)
    looks = any(model.sees for model in answerers.values())
    questions = request.part(open_asked(request, require_images=looks and not request.features))
    answered: dict[str, dict[str, str]] = {}
    for number, (name, model) in enumerate(answerers.items()):
        store = None if model.image is None else open_store(request.store(number), model.image.encoder)
        able, answers, _ = answer_questions(model, questions, store, request)
        answered[name] = dict(zip((each.question_id for each in able.questions), answers, strict=True))
    can_all = [all(q.question_id in each for each in answered.values()) for q in questions.questions]
    common, rows = questions.select(np.flatnonzero(can_all)), []
    for name, each in answered.items():
        scored = score_answers(common, [each[question.question_id] for question in common.questions])
        rows.append(AnswersOf(name, scored.predictions, tuple(scored.columns["accuracy"].tolist())))
    return [*scored.questions.questions], rows


def pick_questions(rows: Sequence[AnswersOf], count: int, pick: AnswerPick = "differ") -> list[int]:
    """Choose questions: ``differ`` draws first among those on which the accuracy of the models differs."""
    random = np.random.default_rng(0).permutation(len(rows[0].answers)).tolist()
    if pick == "differ":
        random.sort(key=lambda at: len({row.accuracy[at] > 0 for row in rows}) == 1)
    return sorted(random[:count])


def analyze_answers(
    questions: Sequence[Question],
    rows: Sequence[AnswersOf],
    *,
    count: int = 8,
    pick: AnswerPick = "differ",
) -> Analysis:
    """Show questions with their image, the truth, and the answer of each model (score attention, Fig. 3)."""
    chosen = pick_questions(rows, count, pick)
    header: tuple[str, ...] = ("question_id", "image", "question", "truth")
    header += tuple(f"{what} of {row.name}" for row in rows for what in ("answer", "accuracy"))
    columns = [column for row in rows for column in (row.answers, row.accuracy)]
    table = [
        (q.question_id, q.image_id, q.text, _truth(q), *(column[at] for column in columns))
        for at, q in enumerate(questions)
    ]
    right = np.array([row.accuracy for row in rows]) > 0
    alone = (right & (right.sum(axis=0) == 1)).sum(axis=1).tolist()
    summary = [
        (row.name, len(questions), 100 * float(np.mean(row.accuracy)), wins)
        for row, wins in zip(rows, alone, strict=True)
    ]
    shown = [
        (questions[at], [(row.name, row.answers[at], row.accuracy[at]) for row in rows]) for at in chosen
    ]
    return Analysis(
        NAME,
        Table(("model", "questions", "accuracy", "right where no other is"), summary),
        {"": Table(header, table)},
        {"": lambda: _draw(shown)},
    )


def truths_of(question: Question) -> list[str]:
    """Return the answers to a question that people gave, each once, the most frequent one first."""
    return [answer for answer, _ in Counter(question.answers).most_common()]


def _truth(question: Question) -> str:
    return ", ".join(truths_of(question)[:3])


def _draw(shown: Sequence[tuple[Question, Sequence[tuple[str, str, float]]]]) -> Figure:
    lines = -(-len(shown) // _ACROSS)
    models = len(shown[0][1])
    images = [shown_image(q.path) if Path(q.path).exists() else None for q, _ in shown]
    tallest = max((each.shape[0] / each.shape[1] for each in images if each is not None), default=1.0)
    figure = new_figure(PAGE, lines * (tallest * PAGE / _ACROSS + 0.55 + 0.14 * models))
    grid = figure.subplots(lines, _ACROSS, squeeze=False)
    for axes in grid.flat:
        blank(axes)
    for axes, (question, answers), image in zip(grid.flat, shown, images, strict=False):
        if image is not None:
            axes.imshow(image)
        _draw_one(axes, question, answers)
    return figure


def _draw_one(axes: Axes, question: Question, answers: Sequence[tuple[str, str, float]]) -> None:
    axes.set_title(lines_of(question.text, 34, most=3), fontsize=7)
    lines = [(f"truth: {_truth(question)}", "black")]
    for name, answer, accuracy in answers:
        mark, ink = marked(accuracy > 0)
        lines.append((f"{mark}{name}: {answer}", ink))
    for at, (text, ink) in enumerate(lines):
        axes.annotate(
            lines_of(text, 36, most=1),
            xy=(0.0, 0.0),
            xytext=(0, -9 - 9 * at),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=7,
            color=ink,
            va="center",
            annotation_clip=False,
        )
    # The layout leaves room for a label, not for annotations.
    axes.set_xlabel("\n" * len(lines), fontsize=7)
