"""Ranks of 5,000 images x 25,000 texts x 1024 by counting, against sorting every row of a full matrix.

Run ``python benchmarks/evaluation.py [--images N] [--repeats N]``. The reference is what released evaluation code
(VSE-infinity and what descends from it) does: embeddings in float64, as ``np.zeros`` makes them, one similarity
matrix, then ``argsort`` over all candidates of each image and of each text and a search for the relevant ones in
the order. The same in float32 is the stronger reference. All find the same ranks, which is checked first.
"""

from __future__ import annotations

import argparse
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


def embed(num_images: int, dtype: type[np.floating] = np.float32) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, DIM, generator=generator)
    texts = images.repeat_interleave(CAPTIONS, 0)
    texts += 4 * torch.randn(texts.shape, generator=generator)
    return Embedded(*(normalize(side).numpy().astype(dtype, copy=False) for side in (images, texts)))


def rank_by_sorting(embedded: Embedded) -> FoundRanks:
    scores = embedded.images @ embedded.texts.T
    i2t = np.empty(len(scores), np.int64)
    for image, row in enumerate(scores):
        order = np.argsort(row)[::-1]
        captions = range(CAPTIONS * image, CAPTIONS * (image + 1))
        i2t[image] = 1 + min(np.where(order == caption)[0][0] for caption in captions)
    t2i = np.empty(scores.shape[1], np.int64)
    for text, column in enumerate(scores.T):
        order = np.argsort(column)[::-1]
        t2i[text] = 1 + np.where(order == text // CAPTIONS)[0][0]
    return FoundRanks(i2t, t2i)


def count(embedded: Embedded) -> FoundRanks:
    images, texts = torch.from_numpy(embedded.images), torch.from_numpy(embedded.texts)
    pairs = np.arange(len(texts))
    ranks = rank_by_counting(
        lambda rows, columns: images[rows] @ texts[columns].T,
        Relevance(pairs // CAPTIONS, pairs, len(images), len(texts)),
    )
    return FoundRanks(ranks.i2t.ranks, ranks.t2i.ranks)


WAYS = {"sort, float64": rank_by_sorting, "sort, float32": rank_by_sorting, "count": count}


def check(num_images: int) -> None:
    """Raise unless all ways agree: the rounding of matrix products may move a rank by a few places."""
    expected = WAYS["sort, float64"](embed(num_images, np.float64))
    for name in ("sort, float32", "count"):
        for one, other in zip(expected, WAYS[name](embed(num_images)), strict=True):
            np.testing.assert_allclose(one, other, atol=3)
            assert np.mean(one != other) < 0.01


def report(num_images: int, repeats: int) -> str:
    """Return the table of seconds and MiB, with ratios to counting."""
    check(num_images)
    makers = [partial(embed, num_images, np.float64 if "64" in name else np.float32) for name in WAYS]
    inputs = [make() for make in makers]
    works = [partial(way, data) for way, data in zip(WAYS.values(), inputs, strict=True)]
    seconds = median_times(works, repeats=repeats, warmup=0)
    above = [peak_memory(way, make) / 2**20 for way, make in zip(WAYS.values(), makers, strict=True)]
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
