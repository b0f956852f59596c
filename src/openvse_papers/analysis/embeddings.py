"""The joint space as a whole: alignment, uniformity, hubs, which captions are hard, and a map."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.corpus import Corpus
from openvse.errors import OpenVSEError, install
from openvse.model.two_tower import TwoTower
from openvse.output.figures import COLUMN, PAGE, blank, colour, legend_below, lines_of, new_figure
from openvse.output.table import Cell, Table
from openvse.runtime.arrays import directions, embeds_gaussians
from openvse.types import EmbeddingSet
from openvse_papers.analysis.hits import QueryHits, find_hits
from openvse_papers.analysis.opening import Embedded, warnings_of
from openvse_papers.analysis.result import Analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NAME = "embeddings"
FIRST = 10
GROUPS = 5
_ITEMS = 4000
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


Occurrence = dict[str, Int[np.ndarray, "C"]]
"""For each direction, how often each candidate is among the first ``FIRST`` of a query."""


def count_hits(embedded: Embedded, hits: Sequence[QueryHits]) -> Occurrence:
    """Count how often each image and each text is among the first ``FIRST`` hits of all queries."""
    sizes = {"t2i": embedded.corpus.relevance.num_images, "i2t": embedded.corpus.relevance.num_texts}
    return {
        side: np.bincount(
            [hit.position for query in hits if query.side == side for hit in query.hits], minlength=size
        )
        for side, size in sizes.items()
    }


def measure_space(embedded: Embedded, occurrence: Occurrence) -> dict[str, Cell]:
    """Measure a joint space (alignment and uniformity: Wang and Isola, ICML 2020, hubs: Radovanovic et al., JMLR 2010).

    Alignment is the mean squared distance of the two items of a relevant pair. 0 is best. Uniformity is the log of the
    mean of ``exp(-2 d^2)`` over all pairs of images or of texts. Lower is more even. The gap is the distance between
    the mean image and the mean text. Several embeddings of an item count as their mean, at unit length. Of many items,
    4,000 are drawn for uniformity.
    """
    images, texts = (_single(side, embedded.model) for side in (embedded.images, embedded.texts))
    relevance = embedded.corpus.relevance
    apart = images[torch.from_numpy(relevance.images)] - texts[torch.from_numpy(relevance.texts)]
    of_images, of_texts = occurrence["t2i"], occurrence["i2t"]
    return {
        "model": embedded.name,
        "alignment": float(apart.square().sum(dim=1).mean()),
        "uniformity of images": uniformity(images),
        "uniformity of texts": uniformity(texts),
        "gap": float((images.mean(dim=0) - texts.mean(dim=0)).norm()),
        "skewness of images": skewness(of_images),
        "skewness of texts": skewness(of_texts),
        "images never found": float((of_images == 0).mean()),
        "texts never found": float((of_texts == 0).mean()),
    }


def uniformity(vectors: Float[Tensor, "B D"]) -> float:
    """Return ``log mean exp(-2 |x - y|^2)`` over all pairs of different items, or 0 if all are equal."""
    if len(vectors) > _ITEMS:
        drawn = np.random.default_rng(0).choice(len(vectors), _ITEMS, replace=False)
        vectors = vectors[torch.from_numpy(drawn)]
    if len(vectors) < 2:
        return 0.0
    return float(torch.pdist(vectors.double()).square().mul(-2).exp().mean().log())


def skewness(counts: Int[np.ndarray, "C"]) -> float:
    """Return the third standardised moment: 0 for even counts, large where a few hubs take most of the places."""
    spread = counts.std()
    return float((((counts - counts.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0


def _single(embedded: EmbeddingSet, model: TwoTower) -> Float[Tensor, "B D"]:
    real = embedded.mask.unsqueeze(2).to(embedded.vectors.dtype)
    mean = (embedded.vectors * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
    return torch.nn.functional.normalize(
        directions(mean.float(), are_gaussians=embeds_gaussians(model)), dim=1
    )


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption in lower case."""
    return _WORD.findall(caption.lower())


def rarest_counts(captions: Sequence[str], known: Sequence[str]) -> Int[np.ndarray, "T"]:
    """Return how often the rarest word of each caption occurs in the ``known`` ones."""
    counts = Counter(word for caption in known for word in caption_words(caption))
    return np.array(
        [min((counts[word] for word in caption_words(caption)), default=0) for caption in captions]
    )


class Group(NamedTuple):
    """Captions of one kind: their common property, their number, and the recall of their images."""

    what: str
    label: str
    captions: int
    recall: float


def recall_by_group(
    hits: Sequence[QueryHits], values: Float[np.ndarray, "T"] | Int[np.ndarray, "T"], what: str
) -> list[Group]:
    """Cut captions into groups of about equal size by a number, and return R@10 of their search for images."""
    ranks = {query.query: query.rank for query in hits if query.side == "t2i"}
    queries = np.array(sorted(ranks))
    correct = np.array([ranks[query] <= FIRST for query in queries])
    chosen = values[queries]
    cuts = np.unique(np.quantile(chosen, np.linspace(0, 1, GROUPS + 1)).round().astype(np.int64))
    groups = []
    for low, high in pairwise(cuts.tolist()):
        last = high == int(cuts[-1])
        inside = (chosen >= low) & ((chosen <= high) if last else (chosen < high))
        top = high if last else high - 1
        if inside.any():
            label = f"{low}" if top <= low else f"{low} to {top}"
            groups.append(Group(what, label, int(inside.sum()), 100 * float(correct[inside].mean())))
    if not groups:  # all captions have the same number
        groups.append(Group(what, f"{cuts[0]}", len(correct), 100 * float(correct.mean())))
    return groups


def analyze_embeddings(
    embedded: Sequence[Embedded],
    training: Sequence[str] = (),
    *,
    places: bool = False,
) -> Analysis:
    """Measure alignment, uniformity and hubs, recall by the length of captions and by their rarest word.

    Words are counted in the captions of ``training``, or else of the corpus. ``places`` adds a map of the embeddings by
    t-SNE, which needs scikit-learn.
    """
    corpus = embedded[0].corpus
    hits = {each.name: find_hits(each, FIRST) for each in embedded}
    occurrence = {each.name: count_hits(each, hits[each.name]) for each in embedded}
    measures = [measure_space(each, occurrence[each.name]) for each in embedded]
    lengths = np.array([len(caption_words(caption)) for caption in corpus.captions])
    rare = rarest_counts(corpus.captions, training or corpus.captions)
    kinds = ((lengths, "words in the caption"), (rare, "occurrences of its rarest word"))
    groups = {
        name: [recall_by_group(first_hits, values, what) for values, what in kinds]
        for name, first_hits in hits.items()
    }
    table = Table((*measures[0],), [(*each.values(),) for each in measures])
    grouped = [(name, *group) for name, both in groups.items() for one in both for group in one]
    figures = {"": lambda: _draw(occurrence, groups)}
    if places:
        figures["map"] = lambda: _draw_map(embedded)
    return Analysis(
        NAME,
        Table(table.header[:7], [row[:7] for row in table.rows]),
        {
            "": table,
            "hubs": Table(("model", "kind", "item", "times among the first 10"), _hubs(corpus, occurrence)),
            "recall": Table(("model", "by", "group", "captions", f"R@{FIRST}"), grouped),
        },
        figures,
        warnings=warnings_of(embedded),
    )


def _hubs(corpus: Corpus, occurrence: Mapping[str, Occurrence]) -> list[tuple[str, str, str, int]]:
    named = {"t2i": ("image", corpus.image_ids), "i2t": ("text", corpus.captions)}
    return [
        (name, named[side][0], named[side][1][at], int(counts[at]))
        for name, sides in occurrence.items()
        for side, counts in sides.items()
        for at in np.argsort(-counts, kind="stable")
    ]


def _draw(occurrence: Mapping[str, Occurrence], groups: Mapping[str, list[list[Group]]]) -> Figure:
    figure = new_figure(PAGE, 4.5)
    (images, texts), (length, rare) = figure.subplots(2, 2)
    for axes, side, kind in ((images, "t2i", "image"), (texts, "i2t", "text")):
        for number, (name, sides) in enumerate(occurrence.items()):
            counts = np.sort(sides[side])[::-1]
            share = np.arange(1, len(counts) + 1) / len(counts)
            # Names of several models stand below the figure.
            label = ("" if len(occurrence) > 1 else f"{name}, ") + f"skewness {skewness(counts):.1f}"
            axes.plot(100 * share, counts, color=colour(number), label=label)
        axes.axhline(counts.mean(), color="0.6", linewidth=0.8, linestyle="--")
        title, share_axis = f"{kind}s as hubs", f"{kind}s, most frequent first (%)"
        axes.set(title=title, xlabel=share_axis, ylabel=f"times among the first {FIRST}")
        axes.legend()
    for axes, which in ((length, 0), (rare, 1)):
        for number, (name, both) in enumerate(groups.items()):
            axes.plot([g.recall for g in both[which]], "o-", color=colour(number), label=name)
        shown = next(iter(groups.values()))[which]
        axes.set_xticks(range(len(shown)), [g.label for g in shown])
        axes.set(xlabel=shown[0].what, ylabel=f"R@{FIRST}, texts asking for images", ylim=(0, 103))
    if len(groups) > 1:
        legend_below(figure, length)
    return figure


IMAGES = 400
"""The most images on the map, each with one text: t-SNE takes long for many items."""


def require_sklearn() -> None:
    """Raise OpenVSEError if scikit-learn, which computes the map, is not installed."""
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError as error:
        raise OpenVSEError(
            f"the map of embeddings needs scikit-learn: {install('map')}, or leave --map out"
        ) from error


def _draw_map(embedded: Sequence[Embedded]) -> Figure:
    """Draw images and their first texts by t-SNE, each pair joined by a line. Large distances mean little."""
    columns = min(len(embedded), 2)
    lines = -(-len(embedded) // columns)
    size = PAGE / 2 if columns > 1 else COLUMN
    figure = new_figure(size * columns, size * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for axes, each in zip(grid.flat, embedded, strict=False):
        axes.set_visible(True)
        images, texts = _places(each)
        for image, text in zip(images, texts, strict=True):
            axes.plot(*zip(image, text, strict=True), color="0.8", linewidth=0.3, zorder=1)
        axes.scatter(*images.T, s=5, color=colour(0), label="images", zorder=2)
        axes.scatter(*texts.T, s=5, color=colour(1), label="texts", zorder=2)
        axes.set_title(lines_of(each.name, 44))
        blank(axes)
    legend_below(figure, *grid.flat)
    return figure


def _places(embedded: Embedded) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of images and of the first text of each."""
    from sklearn.manifold import TSNE

    relevance = embedded.corpus.relevance
    _, first = np.unique(relevance.images, return_index=True)
    drawn = np.random.default_rng(0).permutation(first)[:IMAGES]
    rows, columns = torch.from_numpy(relevance.images[drawn]), torch.from_numpy(relevance.texts[drawn])
    sides = embedded.images.vectors[rows], embedded.texts.vectors[columns]
    are_gaussians = embeds_gaussians(embedded.model)
    both = torch.cat([directions(side.mean(dim=1), are_gaussians=are_gaussians) for side in sides])
    perplexity = min(30.0, max(1.0, (len(both) - 1) / 3))
    points = TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(both.numpy())
    return points[: len(drawn)], points[len(drawn) :]
