"""Ranks of 5,000 images x 25,000 texts x 1024 by counting, against sorting all candidates of every query.

Run ``python benchmarks/evaluation.py [--images N] [--repeats N] [--only sorting|product|growth]``. The references are
what released evaluation code
does, with embeddings in float64 as ``np.zeros`` makes them: VSE++ scores and sorts one query after the other,
VSE-infinity makes one similarity matrix and sorts its rows and columns. The latter in float32 is a stronger
reference than any of them. All find the same ranks, which is checked first.

``product`` compares counting with the bare matrix product of the same embeddings, in the same run: for one embedding an
image, and for three views of an image. ``growth`` measures counting for growing galleries, of width 256, and says what
100,000 images and 500,000 texts would take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from _measure import environment, median_times, peak_memory, table
from openvse.evaluation import rank_by_counting
from openvse.evaluation.report import evaluate_sets
from openvse.functional import normalize
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Relevance

CAPTIONS = 5
DIM = 1024
NARROW = 256
STRIP = 512
LARGE = 100_000


class Embedded(NamedTuple):
    """Embeddings of images and of their captions, five each, in the order of the images."""

    images: np.ndarray
    texts: np.ndarray


class FoundRanks(NamedTuple):
    """Rank of every image's best caption and of every caption's image, 1 = best."""

    i2t: np.ndarray
    t2i: np.ndarray


def embed(num_images: int, dtype: type[np.floating], width: int = DIM) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, width, generator=generator)
    texts = images.repeat_interleave(CAPTIONS, 0)
    texts += 4 * torch.randn(texts.shape, generator=generator)
    return Embedded(*(normalize(side).numpy().astype(dtype, copy=False) for side in (images, texts)))


def sort_matrix(embedded: Embedded) -> FoundRanks:
    scores = embedded.images @ embedded.texts.T
    return _sorted(scores, scores.T)


def sort_queries(embedded: Embedded) -> FoundRanks:
    images, texts = embedded
    groups = np.split(texts, len(images))
    return _sorted((image @ texts.T for image in images), (row for group in groups for row in group @ images.T))


def _sorted(of_images: Iterable[np.ndarray], of_texts: Iterable[np.ndarray]) -> FoundRanks:
    i2t = [_place(row, range(CAPTIONS * n, CAPTIONS * (n + 1))) for n, row in enumerate(of_images)]
    t2i = [_place(row, [text // CAPTIONS]) for text, row in enumerate(of_texts)]
    return FoundRanks(np.array(i2t), np.array(t2i))


def _place(scores: np.ndarray, relevant: Iterable[int]) -> int:
    order = np.argsort(scores)[::-1]
    return 1 + min(np.where(order == item)[0][0] for item in relevant)


def count(embedded: Embedded) -> FoundRanks:
    images, texts = torch.from_numpy(embedded.images), torch.from_numpy(embedded.texts)
    pairs = np.arange(len(texts))
    ranks = rank_by_counting(
        lambda rows, columns: images[rows] @ texts[columns].T,
        Relevance(pairs // CAPTIONS, pairs, len(images), len(texts)),
    )
    return FoundRanks(ranks.i2t.ranks, ranks.t2i.ranks)


@dataclass(frozen=True)
class Way:
    """A way to rank, and the numbers it works on."""

    rank: Callable[[Embedded], FoundRanks]
    dtype: type[np.floating]


WAYS = {
    "sort each query, float64 (VSE++)": Way(sort_queries, np.float64),
    "sort the matrix, float64 (VSE-infinity)": Way(sort_matrix, np.float64),
    "sort the matrix, float32": Way(sort_matrix, np.float32),
    "count, float32": Way(count, np.float32),
}


def check(num_images: int) -> None:
    """Raise unless all ways agree: the rounding of matrix products may move a rank by a few places."""
    found = [way.rank(embed(num_images, way.dtype)) for way in WAYS.values()]
    for other in found[1:]:
        for one_side, other_side in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one_side, other_side, atol=3)
            assert np.mean(one_side != other_side) < 0.01


def report(num_images: int, repeats: int) -> str:
    """Return the table of seconds and MiB, with ratios to counting."""
    check(num_images // 10)
    makers = [partial(embed, num_images, way.dtype) for way in WAYS.values()]
    inputs = [make() for make in makers]
    works = [partial(way.rank, data) for way, data in zip(WAYS.values(), inputs, strict=True)]
    seconds = median_times(works, repeats=repeats, warmup=0)
    above = [peak_memory(way.rank, make) / 2**20 for way, make in zip(WAYS.values(), makers, strict=True)]
    whole = [peak + sum(side.nbytes for side in data) / 2**20 for peak, data in zip(above, inputs, strict=True)]
    columns = [_with_ratio(values) for values in (seconds, above, whole)]
    size = f"{num_images:,} images x {CAPTIONS * num_images:,} texts x {DIM}, median of {repeats}"
    header = ["way", "seconds (ratio)", "peak MiB above the embeddings (ratio)", "with them (ratio)"]
    return f"{size}; {environment()}\n\n{table(header, list(zip(WAYS, *columns, strict=True)))}"


def bare_product(images: torch.Tensor, texts: torch.Tensor) -> None:
    """Compute all products, 512 rows at a time into the same memory, and do nothing with them."""
    strip = torch.empty(STRIP, len(texts))
    for start in range(0, len(images), STRIP):
        rows = images[start : start + STRIP]
        torch.mm(rows, texts.T, out=strip[: len(rows)])


def views_of(embedded: Embedded, count: int) -> tuple[EmbeddingSet, EmbeddingSet]:
    """Return images with several views each, and texts with one."""
    images, texts = torch.from_numpy(embedded.images), torch.from_numpy(embedded.texts)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(images), count, DIM, generator=generator) / DIM**0.5
    views = normalize(images.unsqueeze(1) + (0.5 * noise if count > 1 else 0.0))
    exist = [torch.ones(len(side), number, dtype=torch.bool) for side, number in ((images, count), (texts, 1))]
    return EmbeddingSet(views, exist[0]), EmbeddingSet(texts.unsqueeze(1), exist[1])


def count_sets(images: EmbeddingSet, texts: EmbeddingSet) -> None:
    """Evaluate as openvse does, without the bootstrap."""
    pairs = np.arange(len(texts))
    relevance = Relevance(pairs // CAPTIONS, pairs, len(images), len(texts))
    evaluate_sets(images, texts, relevance, SetMax(), resamples=0)


def product_report(num_images: int, repeats: int) -> str:
    """Return the table of evaluation against the bare matrix product, for K = 1 and K = 3."""
    rows = []
    for count in (1, 3):
        images, texts = views_of(embed(num_images, np.float32), count)
        flat = images.vectors.flatten(0, 1), texts.vectors.flatten(0, 1)
        with torch.inference_mode():
            works = [partial(bare_product, *flat), partial(count_sets, images, texts)]
            product, evaluated = median_times(works, repeats=repeats, warmup=0)
        above = peak_memory(_count_views, partial(_views, num_images, count)) / 2**20
        rows.append([f"K = {count}", product, evaluated, f"{evaluated / product:.2f}", f"{above:.1f}"])
    size = f"{num_images:,} images x {CAPTIONS * num_images:,} texts x {DIM}, median of {repeats}"
    header = ["embeddings of an image", "product, s", "evaluation, s", "ratio", "peak MiB above the embeddings"]
    return f"{size}; {environment()}\n\n{table(header, rows)}"


def _views(num_images: int, count: int) -> tuple[EmbeddingSet, EmbeddingSet]:
    return views_of(embed(num_images, np.float32), count)


def _count_views(sets: tuple[EmbeddingSet, EmbeddingSet]) -> None:
    count_sets(*sets)


def growth_report(sizes: Sequence[int]) -> str:
    """Return time and memory of counting for growing galleries, and what a hundred thousand images would take."""
    rows, items, peaks = [], [], []
    speed = 0.0
    for size in sizes:
        narrow = _narrow(size)
        (seconds,) = median_times([partial(count, narrow)], repeats=1, warmup=0)
        del narrow
        above = peak_memory(count, partial(_narrow, size))
        pairs = CAPTIONS * size**2
        speed = pairs / seconds
        items.append((1 + CAPTIONS) * size)
        peaks.append(above)
        rows.append([f"{size:,} x {CAPTIONS * size:,}", seconds, f"{speed / 1e6:,.0f}", f"{above / 2**20:.1f}"])
    slope, base = np.polyfit(items, peaks, 1)
    memory = (base + slope * (1 + CAPTIONS) * LARGE) / 2**20
    hours = CAPTIONS * LARGE**2 / speed / 3600
    header = ["images x texts", "seconds", "million pairs/s", "peak MiB above the embeddings"]
    told = (
        f"{slope:.0f} bytes an item. {LARGE:,} x {CAPTIONS * LARGE:,}, extrapolated: {hours:.2f} h, {memory:.0f} MiB "
        f"above the embeddings"
    )
    return f"width {NARROW}; {environment()}\n\n{table(header, rows)}\n\n{told}"


def _narrow(num_images: int) -> Embedded:
    return embed(num_images, np.float32, NARROW)


def _with_ratio(values: list[float]) -> list[str]:
    return [f"{value:.3g} ({value / values[-1]:.2g})" for value in values]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--images", type=int, default=5000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--only", choices=("sorting", "product", "growth"), default="sorting")
    chosen = arguments.parse_args()
    if chosen.only == "product":
        print(product_report(chosen.images, chosen.repeats))
    elif chosen.only == "growth":
        print(growth_report([chosen.images, 2 * chosen.images, 4 * chosen.images]))
    else:
        print(report(chosen.images, chosen.repeats))


if __name__ == "__main__":
    main()
