"""The joint space as a whole, with hubs and a map, the captions of one image, and several embeddings of an item."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.aggregators.simple import Mean
from openvse.corpus import Corpus
from openvse.encoders.projections import NoProjection
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import OpenVSEError, importing
from openvse.functional import best_of_pairs, normalize, pad
from openvse.model.two_tower import Tower, TwoTower, embed
from openvse.output.figures import COLUMN, HEAT, PAGE, blank, colour, legend_below, lines_of, new_figure
from openvse.output.table import Cell, Table
from openvse.runtime.arrays import directions, embeds_gaussians
from openvse.types import EmbeddingSet
from openvse_papers.analysis.hits import QueryHits, find_hits
from openvse_papers.analysis.opening import Analysis, Embedded, warnings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        side: np.bincount([hit.position for query in hits if query.side == side for hit in query.hits], minlength=size)
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
    return normalize(directions(mean.float(), are_gaussians=embeds_gaussians(model)))


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption in lower case."""
    return _WORD.findall(caption.lower())


def rarest_counts(captions: Sequence[str], known: Sequence[str]) -> Int[np.ndarray, "T"]:
    """Return how often the rarest word of each caption occurs in the ``known`` ones."""
    counts = Counter(word for caption in known for word in caption_words(caption))
    return np.array([min((counts[word] for word in caption_words(caption)), default=0) for caption in captions])


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


def analyze_embeddings(embedded: Sequence[Embedded], training: Sequence[str] = (), *, places: bool = False) -> Analysis:
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
    groups = {name: [recall_by_group(found, values, what) for values, what in kinds] for name, found in hits.items()}
    table = Table((*measures[0],), [(*each.values(),) for each in measures])
    grouped = [(name, *group) for name, both in groups.items() for one in both for group in one]
    named = {"t2i": ("image", corpus.image_ids), "i2t": ("text", corpus.captions)}
    hubs = [
        (name, named[side][0], named[side][1][at], int(counts[at]))
        for name, sides in occurrence.items()
        for side, counts in sides.items()
        for at in np.argsort(-counts, kind="stable")
    ]
    figures = {"": lambda: _draw(occurrence, groups)}
    if places:
        figures["map"] = lambda: _draw_map(embedded)
    return Analysis(
        "embeddings",
        Table(table.header[:7], [row[:7] for row in table.rows]),
        {
            "": table,
            "hubs": Table(("model", "kind", "item", "times among the first 10"), hubs),
            "recall": Table(("model", "by", "group", "captions", f"R@{FIRST}"), grouped),
        },
        figures,
        warnings=warnings_of(embedded),
    )


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
    with importing("the map of embeddings needs scikit-learn", "map", more=", or leave --map out"):
        import sklearn.manifold  # noqa: F401


def _draw_map(embedded: Sequence[Embedded]) -> Figure:
    """Draw images and their first texts by t-SNE, each pair joined by a line. Large distances mean little."""
    columns = min(len(embedded), 2)
    lines = -(-len(embedded) // columns)
    size = PAGE / 2 if columns > 1 else COLUMN
    figure = new_figure(size * columns, size * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(embedded) :]:
        axes.set_visible(False)
    for axes, each in zip(grid.flat, embedded, strict=False):
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


BINS = np.linspace(-0.5, 1.0, 61)
_BATCH = 128


def embed_captions(model: str, captions: Sequence[str]) -> EmbeddingSet:
    """Embed captions by a model that ``transformers_text`` supports: the mean of its token states, at unit length."""
    width = TransformersText(embed_dim=1, model=model, fine_tune=False).feature_dim
    encoder = TransformersText(
        embed_dim=width, model=model, fine_tune=False, projection=NoProjection, size_augmentation="none"
    )
    tower = Tower(encoder, Mean(input_dim=width, embed_dim=width))
    tokens = encoder.tokenize(captions)
    order = np.argsort([len(ids) for ids in tokens], kind="stable")
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    return embed(tower, ((chosen, pad([tokens[at] for at in chosen])) for chosen in batches), "cpu")


def embed_by_towers(towers: Mapping[str, TwoTower], captions: Sequence[str]) -> dict[str, EmbeddingSet]:
    """Embed captions by the text side of each model."""
    texts = {}
    for name, model in towers.items():
        found = model.encode_text(list(captions))
        vectors = directions(found.vectors, are_gaussians=embeds_gaussians(model))
        texts[name] = EmbeddingSet(vectors, found.mask)
    return texts


def pairs_of_images(corpus: Corpus) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Return every two captions of the same image. Raise OpenVSEError if no image has two captions."""
    first: list[int] = []
    second: list[int] = []
    for image in range(len(corpus)):
        own = corpus.relevance.texts[corpus.relevance.images == image]
        rows, columns = np.triu_indices(len(own), k=1)
        first += own[rows].tolist()
        second += own[columns].tolist()
    if not first:
        raise OpenVSEError(f"{corpus.name}: no image has two captions, so nothing can be compared: name other data")
    return np.array(first), np.array(second)


def cosines(texts: EmbeddingSet, first: Int[np.ndarray, "P"], second: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """Return the cosine of listed captions, the largest of several embeddings."""
    vectors = torch.nn.functional.normalize(texts.vectors.float(), dim=2)
    parts = []
    for start in range(0, len(first), 8192):
        one, other = first[start : start + 8192], second[start : start + 8192]
        products = vectors[one] @ vectors[other].transpose(1, 2)
        parts.append(best_of_pairs(products, texts.mask[one], texts.mask[other]))
    return np.asarray(torch.cat(parts).numpy())


def analyze_captions(corpus: Corpus, texts: Mapping[str, EmbeddingSet]) -> Analysis:
    """Compare captions of the same image with captions of different images (MV-VSE, Fig. 2)."""
    first, second = pairs_of_images(corpus)
    random = np.random.default_rng(0).permutation(len(first))
    image_of = np.zeros(len(corpus.captions), dtype=np.int64)
    image_of[corpus.relevance.texts] = corpus.relevance.images
    apart = image_of[first] != image_of[second[random]]
    pairs = {"same image": (first, second)}
    if apart.any():  # the captions of one image alone leave none
        pairs["different images"] = first[apart], second[random][apart]
    similarity = {(name, kind): cosines(each, *pair) for name, each in texts.items() for kind, pair in pairs.items()}
    summary = [
        (*of, len(v), float(v.mean()), *np.percentile(v, (5, 50, 95)).tolist(), float((v < 0).mean()))
        for of, v in similarity.items()
    ]
    rows = [
        (*of, float(BINS[at]), float(BINS[at + 1]), float(share))
        for of, v in similarity.items()
        for at, share in enumerate(np.histogram(v, BINS)[0] / len(v))
    ]
    columns = ("model", "captions of", "pairs", "mean", "5 %", "median", "95 %", "share below 0")
    header = ("model", "captions of", "from", "to", "share")
    return Analysis(
        "captions",
        Table(columns, summary),
        {"": Table(header, rows), "summary": Table(columns, summary)},
        {"": lambda: _draw_captions([*texts], similarity)},
    )


def _draw_captions(names: Sequence[str], similarity: Mapping[tuple[str, str], np.ndarray]) -> Figure:
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    middles = (BINS[1:] + BINS[:-1]) / 2
    for (name, kind), values in similarity.items():
        share, ink = 100 * np.histogram(values, BINS)[0] / len(values), colour(names.index(name))
        same = kind == "same image"
        axes.plot(middles, share, "-" if same else "--", color=ink, label=f"{name}, {kind}")
        if same:
            axes.fill_between(middles, share, color=ink, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    least = min(float(values.min()) for values in similarity.values())
    axes.set(xlabel="cosine of two captions", ylabel="pairs (%)", xlim=(max(-0.5, least - 0.05), 1.0))
    legend_below(figure, axes, columns=2 if len(names) == 1 else 1)
    return figure


_PAIRS = 4096


@dataclass(frozen=True)
class Views:
    """The views of one side of one model.

    Attributes:
        shares: the share of the relevant pairs whose score comes from each view.
        similarity: the mean cosine of each two views of an item.
        circular_variance: ``1 - |mean of the views|`` of an item, averaged: 0 if the views are equal (DivE).
    """

    model: str
    side: str
    shares: Float[np.ndarray, "K"]
    similarity: Float[np.ndarray, "K K"]
    circular_variance: float

    @property
    def mean_similarity(self) -> float:
        """The mean cosine of two different views of an item."""
        count = len(self.similarity)
        return float((self.similarity.sum() - np.trace(self.similarity)) / (count * (count - 1)))


@torch.inference_mode()
def measure_views(embedded: Embedded) -> list[Views]:
    """Return the views of each side that has several (MV-VSE, Fig. 4b to d).

    A pair is won by the two embeddings with the largest cosine. Views that tie share the pair.
    """
    relevance = embedded.corpus.relevance
    sides = {"image": embedded.images, "text": embedded.texts}
    won: dict[str, np.ndarray] = {side: np.zeros(each.vectors.shape[1]) for side, each in sides.items()}
    for start in range(0, len(relevance.images), _PAIRS):
        rows = torch.from_numpy(relevance.images[start : start + _PAIRS])
        columns = torch.from_numpy(relevance.texts[start : start + _PAIRS])
        images, texts = embedded.images[rows], embedded.texts[columns]
        products = images.vectors @ texts.vectors.transpose(1, 2)
        real = images.mask.unsqueeze(2) & texts.mask.unsqueeze(1)
        products = products.masked_fill(~real, -torch.inf)
        best = products == products.amax(dim=(1, 2), keepdim=True)
        for side, other in (("image", 2), ("text", 1)):
            wins = best.any(dim=other).double()
            won[side] += (wins / wins.sum(dim=1, keepdim=True)).sum(dim=0).numpy()
    statistics = [
        Views(embedded.name, side, won[side] / len(relevance.images), *_spread(each))
        for side, each in sides.items()
        if each.vectors.shape[1] > 1
    ]
    if not statistics:
        raise OpenVSEError(f"{embedded.name} has no views: name one with multi_view or pie_net")
    return statistics


def _spread(embedded: EmbeddingSet) -> tuple[Float[np.ndarray, "K K"], float]:
    """Return the mean cosines of two views and the circular variance. Missing embeddings do not count."""
    vectors = torch.nn.functional.normalize(embedded.vectors.double(), dim=2)
    both = (embedded.mask.unsqueeze(1) & embedded.mask.unsqueeze(2)).double()
    products = vectors @ vectors.transpose(1, 2) * both
    mean = products.sum(dim=0) / both.sum(dim=0).clamp(min=1)
    lengths = products.sum(dim=(1, 2)).clamp(min=0).sqrt() / embedded.mask.sum(dim=1)
    return mean.numpy(), float(1 - lengths.mean())


def analyze_views(embedded: Sequence[Embedded]) -> Analysis:
    """Compare how often each view wins, and how similar the views of an item are."""
    views = [each for one in embedded for each in measure_views(one)]
    shares = [(v.model, v.side, view + 1, float(share)) for v in views for view, share in enumerate(v.shares)]
    cosines = [
        (v.model, v.side, row + 1, column + 1, float(value))
        for v in views
        for (row, column), value in np.ndenumerate(v.similarity)
    ]
    shown = [(v, float(v.shares.max()), float(v.shares.min())) for v in views]
    summary = [
        (v.model, v.side, len(v.shares), most, least, v.mean_similarity, v.circular_variance)
        for v, most, least in shown
    ]
    columns = ("model", "side", "views", "largest share", "smallest share", "cosine", "circular variance")
    return Analysis(
        "views",
        Table(columns, summary),
        {
            "shares": Table(("model", "side", "view", "share"), shares),
            "similarity": Table(("model", "side", "view", "other view", "cosine"), cosines),
        },
        {"": lambda: _draw_views(views)},
        warnings=warnings_of(embedded),
    )


def _draw_views(views: Sequence[Views]) -> Figure:
    columns = min(len(views), 4)
    lines = -(-len(views) // columns)
    figure = new_figure(min(PAGE, 1.9 * columns + 0.6), 3.6 * lines)
    grid = figure.subplots(2 * lines, columns, squeeze=False)
    for axes in grid.flat[:]:
        axes.set_visible(False)
    image, least = None, min(0.0, *(float(each.similarity.min()) for each in views))
    for number, each in enumerate(views):
        line, column = divmod(number, columns)
        bars, heat = grid[2 * line, column], grid[2 * line + 1, column]
        bars.set_visible(True)
        heat.set_visible(True)
        names = [str(view + 1) for view in range(len(each.shares))]
        drawn = bars.bar(names, 100 * each.shares, color=[colour(view) for view in range(len(names))])
        bars.bar_label(drawn, fmt="%.0f", fontsize=7 if len(names) <= 6 else 5, padding=1)
        bars.set(ylim=(0, 112), title=f"{lines_of(each.model, 24)}\n{each.side}s", xlabel="view")
        if column == 0:
            bars.set_ylabel("pairs won (%)")
        image = heat.imshow(each.similarity, cmap=HEAT, vmin=least, vmax=1)
        heat.set_xticks(range(len(names)), names)
        heat.set_yticks(range(len(names)), names)
        heat.set(xlabel="view", ylabel="view")
        for (down, across), value in np.ndenumerate(each.similarity) if len(names) <= 6 else ():
            ink = "black" if value > 0.6 else "white"
            heat.text(across, down, f"{value:.3f}", ha="center", va="center", fontsize=7, color=ink)
    if image is not None:
        figure.colorbar(image, ax=grid[1::2, :].ravel().tolist(), label="cosine", shrink=0.8)
    return figure
