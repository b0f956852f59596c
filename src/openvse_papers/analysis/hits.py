"""The first hits of some queries, the right ones ticked, and answers of several models beside the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from openvse.corpus import Corpus
from openvse.errors import BadImageError
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import open_store
from openvse.media.listing import ImageFile
from openvse.media.videos import read_poster
from openvse.model.base import Model
from openvse.output.figures import PAGE, blank, lines_of, marked, new_figure
from openvse.output.table import Table
from openvse.pipeline import failure_reason, tell_skipped
from openvse.training.kind import Request
from openvse_papers.analysis.opening import Analysis, Draw, Embedded, only, warnings_of
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import Question
from openvse_papers.vqa.evaluate import ScoredAnswers, answer_questions, open_asked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5
Pick = Literal["random", "first", "missed"]
_PIXELS = 240


@dataclass(frozen=True)
class Retrieved:
    """One of the first candidates of a query: its position, its score, and whether it is relevant."""

    position: int
    score: float
    right: bool


@dataclass(frozen=True)
class QueryHits:
    """A query ("t2i" or "i2t") with its first hits, best first, and the rank of its best relevant candidate."""

    model: str
    side: str
    query: int
    rank: int
    hits: tuple[Retrieved, ...]


def find_hits(embedded: Embedded, top: int = SHOWN) -> list[QueryHits]:
    """Return the first hits of every query of both directions."""
    relevance = embedded.corpus.relevance
    report = evaluate_sets(
        embedded.images,
        embedded.texts,
        relevance,
        embedded.model.similarity,
        resamples=0,
        keep=min(top, len(embedded.corpus)),
    )
    assert report.outcomes is not None
    pairs = set(zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True))
    queries = []
    for side, outcomes in (("t2i", report.outcomes.t2i), ("i2t", report.outcomes.i2t)):
        for query, rank, items in zip(outcomes.queries, outcomes.ranks, outcomes.hits, strict=True):
            asked = [(int(query), int(each)) if side == "i2t" else (int(each), int(query)) for each in items]
            images, texts = torch.tensor(asked).T
            scores = embedded.member.score_pairs(images, texts).tolist()
            hits = tuple(
                Retrieved(int(position), score, pair in pairs)
                for position, score, pair in zip(items, scores, asked, strict=True)
            )
            queries.append(QueryHits(embedded.name, side, int(query), int(rank), hits))
    return queries


def pick_queries(candidates: Sequence[QueryHits], count: int, pick: Pick = "random") -> dict[str, list[int]]:
    """Choose ``count`` queries of each direction by the hits of one model.

    ``random`` draws them, ``first`` takes the first ones, ``missed`` draws among those without a right hit.
    """
    chosen = {}
    for side in ("t2i", "i2t"):
        queries = [
            each.query
            for each in candidates
            if each.side == side and not (pick == "missed" and any(hit.right for hit in each.hits))
        ]
        if pick != "first":
            random = np.random.default_rng(0)
            queries = [queries[at] for at in sorted(random.permutation(len(queries))[:count])]
        chosen[side] = queries[:count]
    return chosen


def analyze_hits(embedded: Sequence[Embedded], *, count: int = 3, pick: Pick = "random") -> Analysis:
    """Show the first hits of some queries for each model, ticked where they are right (VSE+2AD, Fig. 4)."""
    by_model = [find_hits(each) for each in embedded]
    chosen = pick_queries(by_model[0], count, pick)
    shown = [
        each
        for side, queries in chosen.items()
        for query in queries
        for answered in by_model
        for each in answered
        if (each.side, each.query) == (side, query)
    ]
    corpus, several = embedded[0].corpus, len(embedded) > 1
    rows, marks = _tables(corpus, shown)
    drawers = {"t2i": ("text_to_image", _draw_images), "i2t": ("image_to_text", _draw_texts)}
    figures: dict[str, Draw] = {
        name: partial(draw, drawn, corpus, several=several)
        for side, (name, draw) in drawers.items()
        if (drawn := [each for each in shown if each.side == side])
    }
    return Analysis("hits", marks, {"": rows}, figures, warnings=warnings_of(embedded))


def _tables(corpus: Corpus, shown: Sequence[QueryHits]) -> tuple[Table, Table]:
    """Return a table with a row for each hit, and one with a row for each query."""
    names = {"i2t": (corpus.image_ids, corpus.captions), "t2i": (corpus.captions, corpus.image_ids)}
    asked = [(q, (q.model, q.side, names[q.side][0][q.query], q.rank)) for q in shown]
    rows = [
        (*about, at, names[q.side][1][hit.position], hit.score, hit.right)
        for q, about in asked
        for at, hit in enumerate(q.hits, start=1)
    ]
    header = ("model", "direction", "query", "first right place", "place", "hit", "score", "right")
    marks = [(*about, "".join(marked(hit.right)[0].strip() for hit in q.hits)) for q, about in asked]
    columns = ("model", "direction", "query", "first right place", "hits")
    return Table(header, rows), Table(columns, marks)


def shown_image(path: ImageFile, longest: int = _PIXELS) -> np.ndarray:
    """Return an image, or a frame of a clip, as ``uint8 [H, W, 3]`` with a longer side of at most ``longest``.

    An unreadable image is logged, and white.
    """
    try:
        image = read_poster(path, shorter_side=longest)
    except BadImageError as error:
        tell_skipped([(path, failure_reason(error, path))])
        return np.full((1, 1, 3), 255, np.uint8)
    image.thumbnail((longest, longest))
    return np.asarray(image)


def _draw_images(shown: Sequence[QueryHits], corpus: Corpus, *, several: bool) -> Figure:
    top = max(len(each.hits) for each in shown)
    figure = new_figure(PAGE, 1.15 * len(shown))
    grid = figure.subplots(len(shown), top + 1, squeeze=False, width_ratios=[1.5] + [1.0] * top)
    for row, each in zip(grid, shown, strict=True):
        for axes in row:
            blank(axes)
        place = "" if each.rank <= top else f"\n(right at {each.rank})"
        lines = lines_of(corpus.captions[each.query], 24, most=5)
        name = f"{each.model}\n" if several else ""
        row[0].text(0.0, 0.5, f"{name}{lines}{place}", va="center", fontsize=7, transform=row[0].transAxes)
        for axes, hit in zip(row[1:], each.hits, strict=False):
            axes.imshow(shown_image(corpus.image_paths[hit.position]))
            mark, ink = marked(hit.right)
            for spine in axes.spines.values():
                spine.set(visible=True, color=ink, linewidth=1.8)
            axes.set_xlabel(f"{mark}{hit.score:.2f}", color=ink, fontsize=7, labelpad=1.5)
    return figure


def _draw_texts(shown: Sequence[QueryHits], corpus: Corpus, *, several: bool) -> Figure:
    figure = new_figure(PAGE, 1.35 * len(shown))
    grid = figure.subplots(len(shown), 2, squeeze=False, width_ratios=[1.0, 3.4])
    for (left, right), each in zip(grid, shown, strict=True):
        blank(left)
        blank(right)
        left.imshow(shown_image(corpus.image_paths[each.query]))
        right.set_xlim(0, 1)
        lines = [(each.model, "black")] if several else []
        for hit in each.hits:
            mark, ink = marked(hit.right)
            text = lines_of(f"{mark}{hit.score:.2f}  {corpus.captions[hit.position]}", 88, most=1)
            lines.append((text, ink))
        if each.rank > len(each.hits):
            lines.append((f"(right at {each.rank})", "black"))
        for at, (text, ink) in enumerate(lines):
            height = 1 - (at + 0.5) / len(lines)
            right.text(0.0, height, text, va="center", fontsize=7, color=ink, transform=right.transAxes)
    return figure


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
        scored = ScoredAnswers(common, [each[question.question_id] for question in common.questions])
        rows.append(AnswersOf(name, scored.predictions, tuple(scored.columns["accuracy"].tolist())))
    return [*scored.questions.questions], rows


def pick_questions(rows: Sequence[AnswersOf], count: int, pick: AnswerPick = "differ") -> list[int]:
    """Choose questions: ``differ`` draws first among those on which the accuracy of the models differs."""
    random = np.random.default_rng(0).permutation(len(rows[0].answers)).tolist()
    if pick == "differ":
        random.sort(key=lambda at: len({row.accuracy[at] > 0 for row in rows}) == 1)
    return sorted(random[:count])


def analyze_answers(
    questions: Sequence[Question], rows: Sequence[AnswersOf], *, count: int = 8, pick: AnswerPick = "differ"
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
    shown = [(questions[at], [(row.name, row.answers[at], row.accuracy[at]) for row in rows]) for at in chosen]
    return Analysis(
        "answers",
        Table(("model", "questions", "accuracy", "right where no other is"), summary),
        {"": Table(header, table)},
        {"": lambda: _draw_answers(shown)},
    )


def truths_of(question: Question) -> list[str]:
    """Return the answers to a question that people gave, each once, the most frequent one first."""
    return [answer for answer, _ in Counter(question.answers).most_common()]


def _truth(question: Question) -> str:
    return ", ".join(truths_of(question)[:3])


def _draw_answers(shown: Sequence[tuple[Question, Sequence[tuple[str, str, float]]]]) -> Figure:
    height, models = -(-len(shown) // _ACROSS), len(shown[0][1])
    images = [shown_image(q.path) if Path(q.path).exists() else None for q, _ in shown]
    tallest = max((each.shape[0] / each.shape[1] for each in images if each is not None), default=1.0)
    figure = new_figure(PAGE, height * (tallest * PAGE / _ACROSS + 0.55 + 0.14 * models))
    grid = figure.subplots(height, _ACROSS, squeeze=False)
    for axes in grid.flat:
        blank(axes)
    for axes, (question, answers), image in zip(grid.flat, shown, images, strict=False):
        if image is not None:
            axes.imshow(image)
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
    return figure
