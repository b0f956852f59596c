"""Training pairs that a model finds far apart: a list and a page to go through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.analysis.folds import PairScores
from openvse.analysis.result import Analysis, Draw, Table
from openvse.analysis.style import COLUMN, QUIET, colour, new_figure
from openvse.corpus import Corpus
from openvse.media.packed import ImageFile
from openvse.output.documents import html_page
from openvse.output.thumbnails import thumbnail

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "suspicious"


@dataclass(frozen=True)
class Precision:
    """How well a list finds pairs that were exchanged on purpose.

    Attributes:
        exchanged: how many pairs were exchanged.
        at_number: the share of exchanged pairs among as many first ones, in percent.
        first: the same among a fifth as many.
        average: the average precision over the whole list, in percent.
        chance: the share of exchanged pairs in the whole list, in percent.
        precision: the precision after each pair of the list.
    """

    exchanged: int
    at_number: float
    first: float
    average: float
    chance: float
    precision: Float[np.ndarray, "P"]


def measure_precision(order: Int[np.ndarray, "P"], exchanged: Bool[np.ndarray, "P"]) -> Precision:
    """Measure how many of the first pairs of a list were exchanged.

    Args:
        order: the pairs, the most suspicious first.
        exchanged: which pairs were exchanged; at least one was.
    """
    found = exchanged[order]
    precision = 100 * np.cumsum(found) / np.arange(1, len(found) + 1)
    number = int(exchanged.sum())
    return Precision(
        number,
        float(precision[number - 1]),
        float(precision[max(1, number // 5) - 1]),
        float(precision[found].mean()),
        100 * number / len(found),
        precision,
    )


def analyze_suspicious(
    corpus: Corpus,
    scores: PairScores,
    *,
    count: int = 100,
    exchanged: Bool[np.ndarray, "P"] | None = None,
) -> Analysis:
    """List all pairs, the most suspicious first, and show the first ones on a page.

    Args:
        corpus: the pairs.
        scores: how each of them compares with the others of its fold.
        count: how many pairs the page shows.
        exchanged: which pairs were exchanged on purpose, to measure the precision of the list.
    """
    order = np.argsort(scores.standing, kind="stable")
    images, texts = corpus.relevance.images, corpus.relevance.texts
    header = ("place", "image", "caption", "standing", "score", "rank of the image", "image that fits best")
    rows = [
        (
            place,
            corpus.image_ids[images[at]],
            corpus.captions[texts[at]],
            float(scores.standing[at]),
            float(scores.score[at]),
            int(scores.rank[at]),
            corpus.image_ids[scores.fits[at]],
        )
        for place, at in enumerate(order.tolist(), start=1)
    ]
    tables = {"": Table(header, rows)}
    summary = Table(("place", "image", "caption", "standing"), [row[:4] for row in rows[:10]])
    figures: dict[str, Draw] = {"": lambda: _draw(scores.standing, exchanged)}
    if exchanged is not None:
        measured = measure_precision(order, exchanged)
        summary = Table(
            ("exchanged pairs", "precision at their number", "at a fifth of it", "average precision", "by chance"),
            [(measured.exchanged, measured.at_number, measured.first, measured.average, measured.chance)],
        )  # fmt: skip
        tables["precision"] = Table(
            ("pairs looked at", "precision"),
            [(at + 1, float(value)) for at, value in enumerate(measured.precision)],
        )
        figures["precision"] = lambda: _draw_precision(measured)
    page = _page(corpus, scores, order[:count])
    return Analysis(NAME, summary, tables, figures, {"": page})


def _page(corpus: Corpus, scores: PairScores, order: Int[np.ndarray, "n"]) -> str:
    style = files("openvse.analysis").joinpath("suspicious.css").read_text(encoding="utf-8")
    cards = "\n".join(_card(corpus, scores, place, at) for place, at in enumerate(order.tolist(), start=1))
    note = (
        f"{len(order)} of {len(corpus.relevance.images)} captions that models, trained without them, find furthest "
        f"from their image. The list of all is {NAME}.csv."
    )
    title = f"Suspicious captions: {corpus.name}"
    return html_page(title, f'<ol class="list">\n{cards}\n</ol>', note=note, style=style)


def _card(corpus: Corpus, scores: PairScores, place: int, at: int) -> str:
    image, text = int(corpus.relevance.images[at]), int(corpus.relevance.texts[at])
    own = corpus.relevance.texts[corpus.relevance.images == image]
    others = [corpus.captions[each] for each in own if each != text]
    listed = f'<p class="others">Its image also has: {escape(" / ".join(others))}</p>' if others else ""
    figures = _figure(corpus, image, f"its image, {scores.rank[at]} of the fold for this caption")
    if int(scores.fits[at]) != image:
        figures += _figure(corpus, int(scores.fits[at]), "the image that fits best")
    return (
        f'<li><p class="place">{place}, standing {scores.standing[at]:.2f}</p>'
        f'<p class="said">{escape(corpus.captions[text])}</p>{listed}<div class="pair">{figures}</div></li>'
    )


def _figure(corpus: Corpus, image: int, label: str) -> str:
    name = escape(corpus.image_ids[image])
    path: ImageFile = corpus.image_paths[image]
    small = thumbnail(path)
    shown = f'<img src="{small}" alt="{name}" loading="lazy">' if small else "<p>(cannot be read)</p>"
    return f"<figure>{shown}<figcaption>{escape(label)}<br>{name}</figcaption></figure>"


def _draw(standing: Float[np.ndarray, "P"], exchanged: Bool[np.ndarray, "P"] | None) -> Figure:
    figure = new_figure(COLUMN, 2.4)
    axes = figure.subplots()
    edges = np.histogram_bin_edges(standing, 50)
    groups: Sequence[tuple[np.ndarray, str]] = [(standing, "all pairs")]
    if exchanged is not None:
        groups = [(standing[~exchanged], "pairs of the data"), (standing[exchanged], "exchanged pairs")]
    for number, (values, label) in enumerate(groups):
        share = 100 * np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(share, edges, color=colour(number), fill=True, alpha=0.5, label=label)
    axes.set_xlabel("standing (standard deviations above a chance pair)")
    axes.set_ylabel("pairs (%)")
    if len(groups) > 1:
        axes.legend()
    return figure


def _draw_precision(measured: Precision) -> Figure:
    figure = new_figure(COLUMN, 2.4)
    axes = figure.subplots()
    looked = np.arange(1, len(measured.precision) + 1)
    axes.plot(looked, measured.precision, color=colour(0))
    axes.axhline(measured.chance, color=QUIET, linestyle="--", linewidth=0.8, label="by chance")
    axes.axvline(
        measured.exchanged, color=QUIET, linestyle=":", linewidth=0.8, label="number of exchanged pairs"
    )
    axes.set_xscale("log")
    axes.set_ylim(0, 103)
    axes.set_xlabel("pairs looked at, most suspicious first")
    axes.set_ylabel("exchanged pairs among them (%)")
    axes.legend(loc="upper right")
    return figure
