"""Ranks of 5,000 images x 25,000 texts x 1024 by counting, against sorting every row of a full matrix.

Run ``python benchmarks/evaluation.py [--images N] [--repeats N]``. The reference is what released evaluation
code does: one similarity matrix in numpy, then for each image and for each text ``argsort`` over all candidates
and a search for the relevant ones in the order. Both find the same ranks, which is checked first.
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
MEBIBYTE = 1 << 20


class Embedded(NamedTuple):
    """Embeddings of images and of their captions, five each, in the order of the images."""

    images: np.ndarray
    texts: np.ndarray


class FoundRanks(NamedTuple):
    """Rank of every image's best caption and of every caption's image, 1 = best."""

    i2t: np.ndarray
    t2i: np.ndarray


def embed(num_images: int) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, DIM, generator=generator)
    texts = images.repeat_interleave(CAPTIONS, 0)
    texts += 4 * torch.randn(texts.shape, generator=generator)
    return Embedded(normalize(images).numpy(), normalize(texts).numpy())


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


def check(embedded: Embedded) -> None:
    """Raise unless both ways agree: the rounding of two matrix products may move a rank by a place or two."""
    for one, other in zip(rank_by_sorting(embedded), count(embedded), strict=True):
        np.testing.assert_allclose(one, other, atol=3)
        assert np.mean(one != other) < 0.01


def report(num_images: int, repeats: int) -> str:
    embedded = embed(num_images)
    check(embedded)
    ways = {"sort every row": rank_by_sorting, "count": count}
    seconds = median_times([partial(way, embedded) for way in ways.values()], repeats=repeats, warmup=0)
    above = [peak_memory(way, partial(embed, num_images)) / MEBIBYTE for way in ways.values()]
    inputs = sum(side.nbytes for side in embedded) / MEBIBYTE
    rows = [
        [name, f"{time:.2f}", f"{peak:.0f}", f"{peak + inputs:.0f}"]
        for name, time, peak in zip(ways, seconds, above, strict=True)
    ]
    ratios = seconds[0] / seconds[1], above[0] / above[1], (above[0] + inputs) / (above[1] + inputs)
    rows.append(["ratio", *(f"{ratio:.1f}" for ratio in ratios)])
    size = f"{num_images:,} images x {len(embedded.texts):,} texts x {DIM}, median of {repeats}"
    header = ["", "seconds", "peak MiB above the embeddings", "peak MiB with them"]
    return f"{size}; {environment()}\n\n{table(header, rows)}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--images", type=int, default=5000)
    arguments.add_argument("--repeats", type=int, default=3)
    chosen = arguments.parse_args()
    print(report(chosen.images, chosen.repeats))


if __name__ == "__main__":
    main()
