"""Ranks of 5,000 images x 25,000 texts x 1024 by counting, against sorting all candidates of every query.

Run ``python benchmarks/evaluation.py [--images N] [--repeats N]``. The references are what released evaluation code
does, with embeddings in float64 as ``np.zeros`` makes them: VSE++ scores and sorts one query after the other,
VSE-infinity makes one similarity matrix and sorts its rows and columns. The latter in float32 is a stronger
reference than any of them. All find the same ranks, which is checked first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from _measure import environment, median_times, peak_memory, table
from openvse.evaluation import rank_by_counting
from openvse.functional import normalize
from openvse.types import Relevance

CAPTIONS = 5
DIM = 1024


class Embedded(NamedTuple):
    """Embeddings of images and of their captions, five each, in the order of the images."""

    images: np.ndarray
    texts: np.ndarray


class FoundRanks(NamedTuple):
    """Rank of every image's best caption and of every caption's image, 1 = best."""

    i2t: np.ndarray
    t2i: np.ndarray


def embed(num_images: int, dtype: type[np.floating]) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, DIM, generator=generator)
    texts = images.repeat_interleave(CAPTIONS, 0)
    texts += 4 * torch.randn(texts.shape, generator=generator)
    return Embedded(*(normalize(side).numpy().astype(dtype, copy=False) for side in (images, texts)))


def sort_matrix(embedded: Embedded) -> FoundRanks:
    scores = embedded.images @ embedded.texts.T
    return _sorted(scores, scores.T)


def sort_queries(embedded: Embedded) -> FoundRanks:
    images, texts = embedded
    groups = np.split(texts, len(images))
    return _sorted(
        (image @ texts.T for image in images), (row for group in groups for row in group @ images.T)
    )


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
    whole = [
        peak + sum(side.nbytes for side in data) / 2**20 for peak, data in zip(above, inputs, strict=True)
    ]
    columns = [_with_ratio(values) for values in (seconds, above, whole)]
    size = f"{num_images:,} images x {CAPTIONS * num_images:,} texts x {DIM}, median of {repeats}"
    header = ["way", "seconds (ratio)", "peak MiB above the embeddings (ratio)", "with them (ratio)"]
    return f"{size}; {environment()}\n\n{table(header, list(zip(WAYS, *columns, strict=True)))}"


def _with_ratio(values: list[float]) -> list[str]:
    return [f"{value:.3g} ({value / values[-1]:.2g})" for value in values]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--images", type=int, default=5000)
    arguments.add_argument("--repeats", type=int, default=3)
    chosen = arguments.parse_args()
    print(report(chosen.images, chosen.repeats))


if __name__ == "__main__":
    main()
