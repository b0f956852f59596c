"""How long retrieval takes as the gallery grows, and how many items poolings process in a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from openvse.aggregators import AGGREGATORS, Aggregator
from openvse.analysis.opening import NamedTowers
from openvse.analysis.result import Analysis
from openvse.conversion.memory import expect_memory
from openvse.errors import OpenVSEError, nearest
from openvse.functional import normalize
from openvse.model import TwoTower, evaluating
from openvse.output.figures import COLUMN, colour, legend_below, new_figure
from openvse.output.table import Table
from openvse.types import EmbeddingSet, Features, Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RETRIEVAL, POOLING = "retrieval_time", "pooling_speed"
SIZES = (100, 1_000, 10_000, 100_000)
LONGEST_S = 20.0
"""A gallery for which a query is expected to take longer, in seconds, is not measured."""

PAIR_BLOCK = 256
"""Models that score pairs keep the tokens of so many images at a time."""

POOLINGS = (
    "mean", "max", "k_max", "gpo", "adpool", "ada_pool", "soft_pool", "fs_pool", "self_attention", "seq2seq", "gcn"
)  # fmt: skip
"""The poolings of VSE+2AD's Table 4, and those of VSE-infinity that are learned."""


@dataclass(frozen=True)
class Timed:
    """The time of one query against a gallery.

    Attributes:
        name: the name of the model.
        kind: what is compared: "1 embedding", "3 embeddings", "tokens of pairs".
        size: the number of items in the gallery.
        seconds: the median over the repetitions.
        low: the fastest repetition.
        high: the slowest repetition.
    """

    name: str
    kind: str
    size: int
    seconds: float
    low: float
    high: float


def time_retrieval(
    towers: Sequence[NamedTowers], sizes: Sequence[int] = SIZES, *, repeats: int = 5, tokens: int = 36
) -> list[Timed]:
    """Time one text query against galleries of images whose embeddings are computed (VSE-infinity, Fig. 3).

    The embeddings are random and have the shape of those of the model: the time does not depend on their values. For a
    model that scores pairs, an image has ``tokens`` embeddings and the query 12.

    Args:
        towers: the models.
        sizes: numbers of images.
        repeats: how often each query is timed; one more warms up.
        tokens: how many local features an image of a pair scorer has.
    """
    found = []
    for named in towers:
        model = named.model
        one_image, one_text = _shapes(model, tokens)
        kind = f"{one_image[0]} embedding{'s' * (one_image[0] > 1)}"
        kind = kind if model.image.aggregator.fixed_k else f"pairs, {one_image[0]} tokens"
        seconds = [0.0]
        before = 0
        for size in sorted(sizes):
            if before and statistics.median(seconds) * size / before > LONGEST_S:
                break
            block = size if model.image.aggregator.fixed_k else min(size, PAIR_BLOCK)
            expect_memory(4 * block * one_image[0] * one_image[1], f"a gallery of {size:,} images")
            gallery, query = _random(block, *one_image), _random(1, *one_text)
            with evaluating(model):
                seconds = time_calls(partial(_ask, model, gallery, query, size), repeats)
            found.append(
                Timed(named.name, kind, size, statistics.median(seconds), min(seconds), max(seconds))
            )
            before = size
    return found


def _ask(model: TwoTower, gallery: EmbeddingSet, query: EmbeddingSet, size: int) -> None:
    """Score a query against ``size`` images; if the gallery has fewer, it is scored again and again."""
    for start in range(0, size, len(gallery)):
        model.score(gallery[: min(len(gallery), size - start)], query)


@torch.inference_mode()
def _shapes(model: TwoTower, tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number and width of the embeddings of an image with ``tokens`` local features, and of a sentence."""
    local = torch.randn(1, tokens, model.image.encoder.feature_dim, device=model.device)
    with evaluating(model):
        image: EmbeddingSet = model.image(
            Inputs(local, torch.ones(1, tokens, dtype=torch.bool, device=model.device))
        )
    text = model.encode_text(["a man in a red jacket is riding a bicycle"])
    (images, image_width), (texts, text_width) = image.vectors.shape[1:], text.vectors.shape[1:]
    return (images, image_width), (texts, text_width)


def _random(count: int, embeddings: int, width: int) -> EmbeddingSet:
    vectors = torch.randn(count, embeddings, width)
    return EmbeddingSet(normalize(vectors), torch.ones(count, embeddings, dtype=torch.bool))


def time_calls(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each repetition of a call, after one that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


@dataclass(frozen=True)
class PoolingSpeed:
    """How many items a pooling processes in a second, forward and in training.

    Attributes:
        name: the name of the pooling in a recipe.
        forward: items per second of the forward pass.
        training: items per second of forward and backward pass together.
    """

    name: str
    forward: float
    training: float


def time_poolings(
    names: Sequence[str] = POOLINGS,
    *,
    elements: int = 36,
    width: int = 1024,
    batch: int = 128,
    repeats: int = 5,
) -> list[PoolingSpeed]:
    """Time poolings on random sets (VSE+2AD, Table 4, gives items per second as a multiple of its slowest).

    Args:
        names: the poolings, as recipes name them.
        elements: N, the number of local features of an item.
        width: L = D.
        batch: the number of items in a batch.
        repeats: how often each pooling is timed; one more warms up.

    Raises:
        OpenVSEError: a name is not that of a pooling of sets.
    """
    local = torch.randn(batch, elements, width)
    pooled = torch.randn(batch, width)
    mask = torch.ones(batch, elements, dtype=torch.bool)
    found = []
    for name in names:
        if name not in AGGREGATORS:
            raise OpenVSEError(
                f"{name!r} is no aggregator{nearest(name, AGGREGATORS.names())}: name one of them"
            )
        pool = AGGREGATORS.get(name)(input_dim=width, embed_dim=width)

        def forward(pool: Aggregator = pool) -> None:
            with torch.inference_mode():
                pool(Features(local, mask, pooled))

        def train(pool: Aggregator = pool) -> None:
            learned = local.clone().requires_grad_()
            pool(Features(learned, mask, pooled)).vectors.square().sum().backward()

        speeds = [batch / statistics.median(time_calls(call, repeats)) for call in (forward, train)]
        found.append(PoolingSpeed(name, *speeds))
    return found


def analyze_retrieval_time(timed: Sequence[Timed]) -> Analysis:
    """Draw the time of a query over the size of the gallery."""
    rows = [(t.name, t.kind, t.size, t.seconds, t.low, t.high) for t in timed]
    header = ("model", "compared", "gallery", "seconds", "fastest", "slowest")
    shown = Table(
        ("model", "compared", "gallery", "milliseconds"),
        [(t.name, t.kind, t.size, 1000 * t.seconds) for t in timed],
    )
    return Analysis(RETRIEVAL, shown, {"": Table(header, rows)}, {"": lambda: _draw_time(timed)})


def analyze_pooling_speed(speeds: Sequence[PoolingSpeed]) -> Analysis:
    """Draw the speed of poolings, and give it as a multiple of the slowest."""
    slowest = min(speed.forward for speed in speeds)
    rows = [(s.name, s.forward, s.training, s.forward / slowest) for s in speeds]
    table = Table(("pooling", "items per second", "in training", "times the slowest"), rows)
    return Analysis(POOLING, table, {"": table}, {"": lambda: _draw_speed(speeds)})


def _draw_time(timed: Sequence[Timed]) -> Figure:
    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    names = list(dict.fromkeys((t.name, t.kind) for t in timed))
    for number, (name, kind) in enumerate(names):
        own = [t for t in timed if (t.name, t.kind) == (name, kind)]
        sizes = [t.size for t in own]
        axes.plot(sizes, [t.seconds for t in own], "o-", color=colour(number), label=f"{name}, {kind}")
        axes.fill_between(
            sizes, [t.low for t in own], [t.high for t in own], color=colour(number), alpha=0.2, linewidth=0
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("images in the gallery")
    axes.set_ylabel("seconds for one text")
    legend_below(figure, axes, columns=1)
    return figure


def _draw_speed(speeds: Sequence[PoolingSpeed]) -> Figure:
    figure = new_figure(COLUMN, 0.24 * len(speeds) + 0.9)
    axes = figure.subplots()
    places = range(len(speeds))
    axes.barh([p - 0.2 for p in places], [s.forward for s in speeds], 0.4, color=colour(0), label="forward")
    axes.barh(
        [p + 0.2 for p in places], [s.training for s in speeds], 0.4, color=colour(1), label="in training"
    )
    axes.set_yticks(places, [s.name for s in speeds])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("items per second")
    legend_below(figure, axes)
    return figure
