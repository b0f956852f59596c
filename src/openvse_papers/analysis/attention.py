"""What a model weighs: maps over an image, and learned pooling coefficients by the size of the set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.aggregators import GPO
from openvse.aggregators.learned import FSPool
from openvse.aggregators.simple import Attends
from openvse.batches.pairs import own_features, with_features
from openvse.corpus import Corpus
from openvse.encoders.image_encoder import Located, locate
from openvse.errors import BadImageError, DataError, OpenVSEError
from openvse.features.store import open_store
from openvse.functional import interpolate, normalize
from openvse.media.listing import ImageFile
from openvse.media.videos import read_poster
from openvse.model.base import Model
from openvse.model.two_tower import TwoTower, evaluating
from openvse.output.documents import percent
from openvse.output.figures import PAGE, QUIET, blank, colour, legend_below, line_style, lines_of, marked, new_figure
from openvse.output.table import Table
from openvse.pipeline import failure_reason, tell_skipped
from openvse.similarities.scores import Fused
from openvse.training.kind import Request
from openvse.types import EmbeddingSet, Features, FeatureSource
from openvse_papers.analysis.hits import shown_image, truths_of
from openvse_papers.analysis.opening import Analysis, open_split
from openvse_papers.datasets.published import open_questions
from openvse_papers.vqa.answerer import Answerer
from openvse_papers.vqa.answers import answer_accuracy
from openvse_papers.vqa.explain import explain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAIRED = 8
"""The most captions that a model that scores pairs reads beside each image."""


@dataclass(frozen=True)
class ImageMap:
    """The map of one embedding, head or reduction over one image.

    Attributes:
        view: the source of the map: "view 1", "head 2", "reduction 1".
        kind: "attention" for weights that sum to 1, "cosine" for the cosine of a part and the embedding.
        boxes: left, top, right and bottom of each part as fractions of the image's width and height.
        tiled: whether the parts are cells that cover the image.
        caption: the caption that matches best, or the question and its answer.
    """

    model: str
    image_id: str
    path: ImageFile
    view: str
    kind: str
    weights: Float[Tensor, "N"]
    boxes: Float[Tensor, "N 4"]
    tiled: bool
    caption: str = ""
    right: bool | None = None
    words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Gallery:
    """The captions among which the best match is searched, and the positions of each image's own ones, if known."""

    captions: Sequence[str]
    own: Sequence[frozenset[int]] = ()


def gallery_of(corpus: Corpus, drawn: Corpus) -> Gallery:
    """Return the captions of a corpus, and which of them belong to each of the drawn images."""
    own: dict[str, set[int]] = {image_id: set() for image_id in corpus.image_ids}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        own[corpus.image_ids[image]].add(text)
    return Gallery(corpus.captions, [frozenset(own[image_id]) for image_id in drawn.image_ids])


def map_images(
    name: str,
    model: TwoTower,
    images: Sequence[tuple[str, ImageFile]],
    gallery: Gallery,
    features: FeatureSource | None = None,
) -> list[ImageMap]:
    """Return the maps of a retrieval model for some images, each with the caption that matches it best.

    The maps are the attention of PIE-Net's heads or of score attention where the model has them. Otherwise they are the
    cosine of each local feature and the embedding (MV-VSE, section 4.4), one map for each view.
    """
    with evaluating(model), torch.inference_mode():
        texts = None if isinstance(model.similarity, Fused) else model.encode_text(list(gallery.captions))
        maps: list[ImageMap] = []
        for number, (image_id, path) in enumerate(images):
            place = _located(model, image_id, path, features)
            assert place.boxes is not None
            nothing = torch.zeros(len(place.boxes))
            first = ImageMap(name, image_id, path, "", "", nothing, place.boxes, place.tiled)
            if texts is None:
                maps += _pair_maps(model, place, gallery, number, first)
            else:
                maps += _view_maps(model, place, gallery, number, first, texts)
    return maps


def _view_maps(
    model: TwoTower, place: Located, gallery: Gallery, number: int, first: ImageMap, texts: EmbeddingSet
) -> Iterator[ImageMap]:
    local: Features = model.image.encoder(place.raw.to(model.device))
    embedded: EmbeddingSet = model.image(place.raw.to(model.device))
    vectors = embedded.vectors[0]
    aggregator = model.image.aggregator
    if isinstance(aggregator, Attends):
        weights, kind, noun = aggregator.attended(local)[0], "attention", "head"
    elif local.local.shape[-1] == vectors.shape[-1]:
        weights, kind, noun = vectors @ normalize(local.local[0]).T, "cosine", "view"
    else:
        raise OpenVSEError(
            f"{first.model}: its local features are {local.local.shape[-1]} wide and its embeddings "
            f"{vectors.shape[-1]}, so they have no cosine, and {type(aggregator).__name__} has no attention: name a "
            f"model with a shared projection, pie_net or score_attention"
        )
    real = local.mask[0]
    for view, row in enumerate(weights):
        view_only = EmbeddingSet(vectors[None, view : view + 1].cpu(), torch.ones(1, 1, dtype=torch.bool))
        best = int(model.score(view_only, texts)[0].argmax())
        label = f"{noun} {view + 1}" if len(weights) > 1 else "embedding"
        yield replace(
            first,
            view=label,
            kind=kind,
            weights=row[real].float().cpu(),
            boxes=first.boxes[: int(real.sum())],
            caption=gallery.captions[best],
            right=best in gallery.own[number] if gallery.own else None,
        )


def _pair_maps(model: TwoTower, place: Located, gallery: Gallery, number: int, first: ImageMap) -> Iterator[ImageMap]:
    """Score the image with its own captions, or with the first ones, and map the reductions of the best pair."""
    assert isinstance(model.similarity, Fused)
    own = sorted(gallery.own[number]) if gallery.own else range(len(gallery.captions))
    captions = [gallery.captions[at] for at in [*own][:PAIRED]]
    texts: EmbeddingSet = model.text(model.read_texts(captions).to(model.device))
    embedded: EmbeddingSet = model.image(place.raw.to(model.device))
    best = int(model.score(embedded, texts)[0].argmax())
    fusion = model.similarity.fusion
    one = torch.tensor([best], device=texts.vectors.device)
    reduced = fusion(*fusion.prepare(embedded, texts[one]))
    if reduced.weights is None:
        raise OpenVSEError(f"{first.model}: its {type(fusion).__name__} has no weights: name one of score_attention")
    of_image, of_words = (weights[0].float().cpu() for weights in reduced.weights)
    pieces = model.text.encoder.pieces(captions[best])
    for row, (seen, read) in enumerate(zip(of_image, of_words, strict=True)):
        yield replace(
            first,
            view=f"reduction {row + 1}",
            kind="attention",
            weights=seen[: len(first.boxes)],
            caption=captions[best],
            right=None if not gallery.own else True,
            words=tuple(zip(pieces, read[: len(pieces)].tolist(), strict=True)),
        )


def map_answers(
    name: str,
    model: Answerer,
    image: tuple[str, ImageFile],
    questions: Sequence[str],
    truths: Sequence[Sequence[str]] = (),
) -> list[ImageMap]:
    """Return the maps behind the answers to questions about an image, with the weights of their words."""
    image_id, path = image
    maps: list[ImageMap] = []
    known = truths or [()] * len(questions)
    for one, truth in zip(explain(model, path, questions, top_k=1), known, strict=True):
        if one.image_weights is None or one.boxes is None or one.word_weights is None:
            raise OpenVSEError(f"{name} has no weights over the parts of an image: name one with score_attention")
        answer = one.guesses[0]
        title = f"{one.question} → {answer.answer} ({percent(answer.probability)})"
        right = bool(answer_accuracy([answer.answer], [truth], votes=False)[0]) if truth else None
        if right is False:
            title += f", truth: {truth[0]}"
        for row, (seen, read) in enumerate(zip(one.image_weights, one.word_weights, strict=True), 1):
            words = tuple(zip(one.words, read.tolist(), strict=True))
            seen_at = f"reduction {row}", "attention", seen, one.boxes, one.tiled
            maps.append(ImageMap(name, image_id, path, *seen_at, title, right, words))
    return maps


def _located(model: TwoTower, image_id: str, path: ImageFile, features: FeatureSource | None) -> Located:
    """Return the raw local features of an image and their boxes, decoded or from a store."""
    if features is None:
        place = locate(model.image.encoder, model.read_images([path]).to(model.device))
    else:
        raw = features.gather(features.positions([image_id]))
        boxes = model.image.encoder.places(model.image.encoder.local_features(raw))
        place = Located(raw, None if boxes is None else boxes[0], raw.boxes is None)
    if place.boxes is None:
        raise OpenVSEError(
            f"{image_id}: the features have no places: name a model of grids or boxes, or a feature store with boxes"
        )
    return place


def pick_images(corpus: Corpus, count: int) -> Corpus:
    """Draw images at random, without unreadable ones. Raise DataError if none can be read."""
    drawn = np.random.default_rng(0).choice(len(corpus), min(count, len(corpus)), replace=False)
    readable: list[int] = []
    for place in np.sort(drawn).tolist():
        path = corpus.image_paths[place]
        try:
            read_poster(path)
            readable.append(place)
        except BadImageError as error:
            tell_skipped([(path, failure_reason(error, path))])
    if not readable:
        raise DataError(
            f"none of the {len(drawn)} images drawn from {corpus.name} can be read: name others with --image, or check "
            f"the data by 'openvse data check'"
        )
    return corpus.select(np.array(readable))


PIXELS = 336
"""The longer side of an image in the figure."""

_HEAT = "inferno"


def analyze_attention(maps: Sequence[ImageMap]) -> Analysis:
    """Draw maps over their images, a row for each image of a model, and list all weights."""
    header = ("model", "image", "view", "kind", "part", "left", "top", "right", "bottom", "weight")
    rows = [
        (m.model, m.image_id, m.view, m.kind, part + 1, *box, weight)
        for m in maps
        for part, (box, weight) in enumerate(zip(m.boxes.tolist(), m.weights.tolist(), strict=True))
    ]
    captions = [
        (m.model, m.image_id, m.view, m.caption, "" if m.right is None else m.right, float(_share(m))) for m in maps
    ]
    columns = ("model", "image", "view", "caption", "right", "share of the top tenth")
    words = [
        (m.model, m.image_id, m.view, at + 1, word, weight) for m in maps for at, (word, weight) in enumerate(m.words)
    ]
    tables = {"": Table(header, rows), "captions": Table(columns, captions)}
    if words:
        tables["words"] = Table(("model", "image", "view", "position", "word", "weight"), words)
    return Analysis("attention", Table(columns, captions), tables, {"": lambda: _draw(maps)})


def heat_of(
    weights: Float[Tensor, "N"], boxes: Float[Tensor, "N 4"], height: int, width: int
) -> Float[np.ndarray, "H W"]:
    """Return the weight at each pixel, from 0 to 1: the mean of the parts that cover it, at ``boxes`` in fractions."""
    least, most = float(weights.min()), float(weights.max())
    # Weights that differ by rounding only are even.
    differ = most - least > 1e-3 * abs(most)
    scaled = (weights - least) / (most - least) if differ else torch.full_like(weights, 0.5)
    total, count = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    edges = boxes * torch.tensor([width, height, width, height])
    for value, box in zip(scaled.tolist(), edges.round().int().tolist(), strict=True):
        left, top, right, bottom = box
        inside = (slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1)))
        total[inside] += value
        count[inside] += 1
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0).astype(np.float32)


def _share(one: ImageMap) -> float:
    """Return how much of the weight is on the tenth of the parts with the most. Cosines count from the least."""
    weights = one.weights - one.weights.min() if one.kind == "cosine" else one.weights
    top = weights.topk(max(1, round(len(weights) / 10))).values.sum()
    return float(top / weights.sum()) if float(weights.sum()) > 0 else 0.0


def _groups(maps: Sequence[ImageMap]) -> list[list[ImageMap]]:
    """Return the maps of each image of each model. Maps of different questions have rows of their own."""
    groups: list[list[ImageMap]] = []
    for one in maps:
        last = groups[-1][-1] if groups else None
        begins = one.view.endswith(" 1") or one.view == "embedding"
        if last is None or (last.model, last.image_id) != (one.model, one.image_id) or begins:
            groups.append([])
        groups[-1].append(one)
    return groups


def _draw(maps: Sequence[ImageMap]) -> Figure:
    from matplotlib.cm import ScalarMappable

    rows = _groups(maps)
    columns = 1 + max(map(len, rows))
    # With one map for each image, two images share a line.
    across = max(1, 4 // columns)
    images = [shown_image(row[0].path, PIXELS) for row in rows]
    tallest = max(image.shape[0] / image.shape[1] for image in images)
    height = tallest * PAGE / (columns * across) + (0.72 if columns * across <= 4 else 1.0)
    figure = new_figure(PAGE, height * -(-len(rows) // across) + 0.3)
    grid = figure.subplots(-(-len(rows) // across), columns * across, squeeze=False)
    for axes in grid.flat:
        blank(axes)
    models = {one.model for one in maps}
    for number, row in enumerate(rows):
        line, start = number // across, number % across * columns
        pixels = images[number]
        cells = grid[line, start : start + columns]
        cells[0].imshow(pixels)
        cells[0].set_title(lines_of(row[0].model, 20) if len(models) > 1 else "image")
        letters = round(120 / (columns * across))
        # The common text of all maps of an image appears once, below the image.
        shared = len(row) > 1 and len({one.caption for one in row}) == 1
        if shared:
            _say(cells[0], row[0], letters, most=9)
        for axes, one in zip(cells[1:], row, strict=False):
            _draw_map(axes, pixels, one, letters)
            axes.set_title(one.view + ("\n" if columns * across > 4 else " ") + f"({one.kind})")
            if not shared:
                _say(axes, one, letters)
    # Each map is scaled by itself, and this scale gives the meaning of its colours.
    under = grid.ravel().tolist()
    drawn = figure.colorbar(
        ScalarMappable(cmap=_HEAT), ax=under, orientation="horizontal", shrink=0.4, aspect=60, pad=0.01
    )
    drawn.set_ticks([0, 1], labels=["least", "most of each map"])
    drawn.ax.tick_params(length=0, labelsize=6.5)
    return figure


def _draw_map(axes: Axes, pixels: np.ndarray, one: ImageMap, letters: int) -> None:
    height, width = pixels.shape[:2]
    axes.imshow(pixels.mean(axis=2), cmap="gray", vmin=0, vmax=255)
    heat = heat_of(one.weights, one.boxes, height, width)
    axes.imshow(_smooth(heat, one) if one.tiled else heat, cmap=_HEAT, alpha=0.55, vmin=0, vmax=1)
    if one.words:
        top = sorted(one.words, key=lambda word: -word[1])[:3]
        listed = ", ".join(f"{word} {weight:.2f}" for word, weight in top)
        axes.text(
            0.5,
            0.02,
            lines_of(listed, letters),
            transform=axes.transAxes,
            ha="center",
            va="bottom",
            fontsize=6,
            color="white",
            bbox={"facecolor": QUIET, "edgecolor": "none", "pad": 1.5, "alpha": 0.8},
        )


def _say(axes: Axes, one: ImageMap, letters: int, most: int = 4) -> None:
    """Write the caption of a map below it, in green if it is right and in red if it is wrong."""
    mark, ink = marked(one.right)
    text = (mark + one.caption).replace(" %", "\N{NO-BREAK SPACE}%")
    axes.set_xlabel(lines_of(text, letters, most), color=ink, fontsize=7)


def _smooth(heat: Float[np.ndarray, "H W"], one: ImageMap) -> Float[np.ndarray, "H W"]:
    """Blend the cells of a grid, whose borders mean nothing."""
    from PIL import Image

    side = round(len(one.weights) ** 0.5)
    height, width = heat.shape
    small = Image.fromarray(heat).resize((side, side), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).clip(0, 1)


@dataclass(frozen=True)
class Subjects:
    """The subjects of the maps: the user's images and captions, or ``count`` images of the data and their captions.

    ``limit`` images of the split give the captions to match, and None takes all.
    """

    images: tuple[Path, ...] = ()
    captions: tuple[str, ...] = ()
    count: int = 3
    limit: int | None = None


def look_at(models: Mapping[str, Model], request: Request, asked: Subjects) -> list[ImageMap]:
    """Return the maps of each model for each image, with the maps of one image next to each other."""
    maps: list[list[ImageMap]] = []
    for number, (name, model) in enumerate(models.items()):
        if isinstance(model, TwoTower):
            maps.append(_towers(name, model, request, request.store(number), asked))
        elif isinstance(model, Answerer):
            maps.append(_answers(name, model, request, asked))
        else:
            raise OpenVSEError(f"{name} {model.purpose}, but has no maps over an image: name another model")
    order = list(dict.fromkeys(one.image_id for each in maps for one in each))
    return [one for image in order for each in maps for one in each if one.image_id == image]


def _towers(name: str, model: TwoTower, request: Request, store: Path | None, asked: Subjects) -> list[ImageMap]:
    if asked.images:
        own: list[tuple[str, ImageFile]] = [(path.name, path) for path in asked.images]
        captions = asked.captions or open_split(request, asked.limit).captions
        return map_images(name, model, own, Gallery(captions))
    corpus = open_split(request, asked.limit)
    features: FeatureSource | None = open_store(store, model.image.encoder)
    features = own_features(corpus, model.image.encoder.backbone) if features is None else features
    drawn = with_features(pick_images(corpus, asked.count), features)
    images = list(zip(drawn.image_ids, drawn.image_paths, strict=True))
    gallery = Gallery(asked.captions) if asked.captions else gallery_of(corpus, drawn)
    return map_images(name, model, images, gallery, features)


def _answers(name: str, model: Answerer, request: Request, asked: Subjects) -> list[ImageMap]:
    if asked.images:
        if not asked.captions:
            raise OpenVSEError(f"{name} answers questions: give --caption with a question about each image")
        return [one for path in asked.images for one in map_answers(name, model, (path.name, path), asked.captions)]
    questions = request.part(open_questions(request.data, allow_outside=request.allow_outside))
    drawn = pick_images(questions.as_corpus(), asked.count)
    maps = []
    for image_id, path in zip(drawn.image_ids, drawn.image_paths, strict=True):
        own = [q for q in questions.questions if q.image_id == image_id][:1]
        texts = asked.captions or [q.text for q in own]
        truths = [] if asked.captions else [truths_of(q) for q in own]
        maps += map_answers(name, model, (image_id, path), texts, truths)
    return maps


SIZES = (10, 20, 36, 49)
"""Sizes of short and long captions, of 36 regions, and of a 7 x 7 grid."""
K = 5
"""The k of the k-max pooling shown beside learned ones."""


@dataclass(frozen=True)
class Curve:
    """The coefficients of one pooling for sets of ``size`` elements, largest element first.

    They are means over the dimensions if each has its own. ``pool`` is "" if the pooling is the aggregator.
    """

    model: str
    side: str
    pool: str
    size: int
    values: tuple[float, ...]

    @property
    def label(self) -> str:
        """The name of the curve in a legend."""
        return f"{self.model}, {self.pool}" if self.pool else self.model

    def effective(self) -> float:
        """Return how many equal coefficients would be as concentrated: ``(sum |c|)^2 / sum c^2``. 1 for max pooling."""
        squares = sum(value * value for value in self.values)
        return sum(map(abs, self.values)) ** 2 / squares if squares else 0.0


def k_max(size: int, k: int) -> list[float]:
    """Return the coefficients of the mean of the k largest of ``size`` values. 1 is max pooling, ``size`` the mean."""
    taken = min(k, size)
    return [1 / taken] * taken + [0.0] * (size - taken)


def learned_curves(towers: Mapping[str, TwoTower], sizes: Sequence[int]) -> list[Curve]:
    """Return the coefficients that the poolings of some models have learned (VSE-infinity, Fig. 5)."""
    curves = []
    for name, model in towers.items():
        own = []
        for side, tower in (("image", model.image), ("text", model.text)):
            for path, pool in tower.aggregator.named_modules():
                if isinstance(pool, GPO | FSPool):  # whose coefficients depend only on the size of the set
                    place = re.sub(r"views\.(\d+)", lambda found: f"view {int(found[1]) + 1}", path)
                    made = _coefficients(pool, sizes).items()
                    own += [Curve(name, side, place.replace(".", ", "), size, tuple(c)) for size, c in made]
        if not own:
            kinds = ", ".join(type(side.aggregator).__name__ for side in (model.image, model.text))
            raise OpenVSEError(f"{name} has no learned coefficients (but {kinds}): name a model with gpo or fs_pool")
        curves += own
    return curves


def analyze_coefficients(towers: Mapping[str, TwoTower], sizes: Sequence[int] = SIZES) -> Analysis:
    """Compare learned coefficients with mean, max and k-max pooling."""
    curves = learned_curves(towers, sizes)
    rows = [
        (c.model, c.side, c.pool, c.size, at + 1, value, 1 / c.size, float(at == 0), k_max(c.size, K)[at])
        for c in curves
        for at, value in enumerate(c.values)
    ]
    header = ("model", "side", "pool", "size", "position", "learned", "mean", "max", f"k_max_{K}")
    summary = [(c.label, c.side, c.size, c.values[0], sum(c.values[:K]), c.values[-1], c.effective()) for c in curves]
    columns = ("model", "side", "size", "largest", f"top {K} together", "smallest", "effective number")
    return Analysis(
        "coefficients", Table(columns, summary), {"": Table(header, rows)}, {"": lambda: _draw_curves(curves)}
    )


@torch.inference_mode()
def _coefficients(pool: nn.Module, sizes: Sequence[int]) -> Mapping[int, list[float]]:
    wanted = torch.tensor([*sizes], device=next(pool.parameters()).device)
    if isinstance(pool, GPO):
        table = pool.coefficients(wanted)
    else:
        assert isinstance(pool, FSPool)
        table = interpolate(pool.knots, wanted)
    shared = table.float().view(*table.shape[:2], -1).mean(dim=2).cpu()
    return {size: shared[row, :size].tolist() for row, size in enumerate(sizes)}


def _draw_curves(curves: Sequence[Curve]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    sides = [side for side in ("image", "text") if any(curve.side == side for curve in curves)]
    sizes = list(dict.fromkeys(curve.size for curve in curves))
    labels = list(dict.fromkeys(curve.label for curve in curves))
    figure = new_figure(PAGE, 1.7 * len(sides) + 0.5)
    grid = figure.subplots(len(sides), len(sizes), squeeze=False)
    for row, side in enumerate(sides):
        for column, size in enumerate(sizes):
            axes = grid[row, column]
            chosen = [curve for curve in curves if (curve.side, curve.size) == (side, size)]
            _draw_panel(axes, chosen, labels, size)
            axes.set_title(f"{side}s, {size} elements")
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            if row == len(sides) - 1:
                axes.set_xlabel("position, largest first")
        grid[row, 0].set_ylabel("coefficient")
    legend_below(figure, *grid.flat, columns=5)
    return figure


def _draw_panel(axes: Axes, chosen: Sequence[Curve], labels: Sequence[str], size: int) -> None:
    positions = range(1, size + 1)
    top = max(1 / min(K, size), *(max(curve.values) for curve in chosen)) if chosen else 1.0
    low = min(0.0, *(min(curve.values) for curve in chosen)) if chosen else 0.0
    axes.step(positions, k_max(size, K), where="mid", color=QUIET, linewidth=0.9, linestyle=":", label=f"{K}-max")
    axes.axhline(1 / size, color=QUIET, linewidth=0.9, linestyle="--", label="mean")
    # Max pooling leaves the panel at the top, because its height of 1 would push the other curves onto the axis.
    axes.plot([1, 1], [0, 2], color=QUIET, linewidth=0.9, alpha=0.6, label="max (1 at position 1)")
    for curve in chosen:
        number = labels.index(curve.label)
        axes.plot(positions, curve.values, color=colour(number), linestyle=line_style(number), label=curve.label)
    axes.set(xlim=(0.0, size + 1), ylim=(1.15 * low, 1.15 * min(top, 1.0)))
