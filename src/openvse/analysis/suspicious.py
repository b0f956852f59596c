"""Training pairs that models, trained without them, find far apart: their scores, a list and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from openvse.analysis.result import Analysis, Draw
from openvse.analysis.trainings import SharedStores, Trainings, retrieval_recipe, share_stores
from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.files import write_page
from openvse.media.packed import ImageFile
from openvse.model import TwoTower
from openvse.output.documents import html_page
from openvse.output.figures import COLUMN, QUIET, colour, new_figure
from openvse.output.table import Table
from openvse.output.thumbnails import thumbnail
from openvse.training.records import Watcher
from openvse.types import OnProgress, Relevance

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_VALIDATION = 0.1
"""The share of the images of the other folds that selects the epoch."""


@dataclass(frozen=True)
class FoldPlan:
    """What is trained on what.

    Attributes:
        recipe: the recipe by name or file.
        overrides: overrides of the recipe, ``key=value`` each.
        corpus: the pairs that are examined.
        fold: the fold of each image.
        folder: the folder of the runs and stores.
    """

    recipe: str
    overrides: tuple[str, ...]
    corpus: Corpus
    fold: Int[np.ndarray, "I"]
    folder: Path


@dataclass(frozen=True)
class PairScores:
    """How each relevant pair compares with the other pairs of its fold.

    Attributes:
        score: the score of the pair; NaN, like its standing, if its image cannot be read.
        standing: the mean of two z-scores: that of the score among the scores of all texts for its image, and among
            those of all images for its text. A pair that fits no better than chance has a standing near 0.
        rank: how many images of the fold score at least as high for the text; 1 is the best.
        fits: the image of the fold that fits the text best.
    """

    score: Float[np.ndarray, "P"]
    standing: Float[np.ndarray, "P"]
    rank: Int[np.ndarray, "P"]
    fits: Int[np.ndarray, "P"]


def cut_folds(corpus: Corpus, count: int, seed: int) -> Int[np.ndarray, "I"]:
    """Draw the fold of each image, of nearly equal sizes; raise DataError if there are more folds than images."""
    if len(corpus) < 4 * count:
        raise DataError(
            f"{corpus.name} has {len(corpus)} images for {count} folds: give at least 4 images for each fold"
        )
    return np.random.default_rng(seed).permutation(len(corpus)) % count


def swap_captions(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Bool[np.ndarray, "P"]]:
    """Give some captions to other images, as a check of what finds them.

    Captions are exchanged in a circle, so that none stays with its image; all captions keep their numbers.

    Args:
        share: the share of the pairs to exchange.

    Returns:
        The corpus with exchanged pairs, and which of its pairs were exchanged.
    """
    relevance = corpus.relevance
    random = np.random.default_rng(seed)
    drawn = random.permutation(len(relevance.images))[: max(2, round(share * len(relevance.images)))]
    # Sorted by image and moved by more than an image has captions, no caption returns to its own image.
    drawn = drawn[np.argsort(relevance.images[drawn], kind="stable")]
    most = int(np.bincount(relevance.images[drawn]).max())
    texts = relevance.texts.copy()
    texts[drawn] = np.roll(relevance.texts[drawn], most)
    original = set(zip(relevance.images.tolist(), relevance.texts.tolist(), strict=True))
    exchanged = np.array(
        [pair not in original for pair in zip(relevance.images.tolist(), texts.tolist(), strict=True)]
    )
    changed = Relevance(relevance.images, texts, relevance.num_images, relevance.num_texts)
    return replace(corpus, relevance=changed), exchanged


def score_folds(
    plan: FoldPlan, watcher: Watcher | None = None, progress: OnProgress | None = None
) -> PairScores:
    """Train one model without each fold, and score the pairs of the fold with it.

    A run that was interrupted goes on, and one that is finished is not trained again.

    Args:
        progress: a function that is called while features are extracted.

    Raises:
        OpenVSEError: the recipe is not for retrieval, or cannot be trained on these data.
    """
    count = int(plan.fold.max()) + 1
    pairs = len(plan.corpus.relevance.images)
    scores = PairScores(
        *(np.full(pairs, np.nan) for _ in range(2)), *(np.zeros(pairs, dtype=np.int64) for _ in range(2))
    )
    base = retrieval_recipe(plan.recipe, [*plan.overrides, "data.source=unused"])
    stores = share_stores(base, plan.corpus, plan.folder, progress)
    trainings = Trainings(watcher)
    for number in range(count):
        source = f"data.source={_write_fold(plan, number, stores)}"
        # Without stored features, images are read from where they are.
        more = stores.overrides if stores.images else (*stores.overrides, "data.allow_outside=true")
        recipe = retrieval_recipe(plan.recipe, [*plan.overrides, source, *more])
        step = f"training {number + 1} of {count}: without fold {number + 1}"
        model = trainings.best(recipe, plan.folder / f"fold_{number + 1}", step)
        _score(plan, number, model, stores, scores)
    return scores


def _write_fold(plan: FoldPlan, number: int, stores: SharedStores) -> Path:
    """Write the pairs outside a fold as a table, a tenth of their images for validation."""
    corpus = plan.corpus
    others = np.flatnonzero(plan.fold != number)
    chosen = np.random.default_rng(number).permutation(others)[: max(2, round(_VALIDATION * len(others)))]
    validation = set(chosen.tolist())
    # Stored features go by the identifier of an image; without them, its file is read.
    names = [str(path) for path in corpus.image_paths] if stores.images is None else corpus.image_ids
    rows = [
        (names[image], corpus.captions[caption], "validation" if image in validation else "train")
        for image, caption in zip(corpus.relevance.images, corpus.relevance.texts, strict=True)
        if plan.fold[image] != number
    ]
    path = plan.folder / f"fold_{number + 1}.csv"
    write_page(path, Table(("file_name", "caption", "split"), rows).to_csv())
    return path.resolve()


@torch.inference_mode()
def _score(plan: FoldPlan, number: int, model: TwoTower, stores: SharedStores, results: PairScores) -> None:
    """Fill in the scores of the pairs of a fold."""
    inside = np.flatnonzero(plan.fold == number)
    held = plan.corpus.select(inside)
    embedded = stores.embed(model, held)
    readable = set(embedded.corpus.image_ids)
    inside = inside[[name in readable for name in held.image_ids]]
    scores = model.score(embedded.images, embedded.texts).double().numpy()
    own = embedded.corpus.relevance
    by_image = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True).clip(
        min=1e-9
    )
    by_text = (scores - scores.mean(axis=0)) / scores.std(axis=0).clip(min=1e-9)
    # ``select`` keeps the pairs of an image in their order, sorted by the image.
    pairs = np.flatnonzero(np.isin(plan.corpus.relevance.images, inside))
    pairs = pairs[np.argsort(plan.corpus.relevance.images[pairs], kind="stable")]
    pair = own.images, own.texts
    results.score[pairs] = scores[pair]
    results.standing[pairs] = (by_image[pair] + by_text[pair]) / 2
    results.rank[pairs] = (scores[:, own.texts] >= scores[pair]).sum(axis=0)
    results.fits[pairs] = inside[scores[:, own.texts].argmax(axis=0)]


NAME = "suspicious"


class Precision(NamedTuple):
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
    ordered = exchanged[order]
    precision = 100 * np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    number = int(ordered.sum())
    return Precision(
        number,
        float(precision[number - 1]),
        float(precision[max(1, number // 5) - 1]),
        float(precision[ordered].mean()),
        100 * number / len(ordered),
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
        scores: how each of them compares with the others of its fold.
        count: how many pairs the page shows.
        exchanged: which pairs were exchanged on purpose, to measure the precision of the list.
    """
    readable = np.isfinite(scores.standing)
    order = np.argsort(scores.standing, kind="stable")[: readable.sum()]
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
    figures: dict[str, Draw] = {"": lambda: _draw(scores.standing, exchanged, readable)}
    if exchanged is not None:
        measured = measure_precision(order, exchanged)
        columns = (
            "exchanged pairs",
            "precision at their number",
            "at a fifth of it",
            "average precision",
            "by chance",
        )
        summary = Table(columns, [measured[:-1]])
        tables["precision"] = Table(
            ("pairs looked at", "precision"), [*enumerate(measured.precision.tolist(), start=1)]
        )
        figures["precision"] = lambda: _draw_precision(measured)
    return Analysis(NAME, summary, tables, figures, {"": _page(corpus, scores, order[:count])})


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


def _draw(
    standing: Float[np.ndarray, "P"], exchanged: Bool[np.ndarray, "P"] | None, readable: Bool[np.ndarray, "P"]
) -> Figure:
    figure = new_figure(COLUMN, 2.4)
    axes = figure.subplots()
    edges = np.histogram_bin_edges(standing[readable], 50)
    groups: Sequence[tuple[np.ndarray, str]] = [(standing[readable], "all pairs")]
    if exchanged is not None:
        moved = standing[readable & exchanged]
        groups = [(standing[readable & ~exchanged], "pairs of the data"), (moved, "exchanged pairs")]
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
