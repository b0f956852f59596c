"""Training batches by image: each image once per epoch, with several of its captions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Int

from openvse.batches.pairs import BatchKey, EpochBatches
from openvse.types import Relevance

CaptionsPerImage = int | Literal["all"]


class PairsOfImages:
    """The pairs of each image that has pairs.

    Args:
        relevance: the pairs of a corpus.
        captions: the largest number of pairs of an image in an epoch; ``all`` takes all.
    """

    def __init__(self, relevance: Relevance, captions: CaptionsPerImage) -> None:
        self._images = relevance.images
        counts = np.bincount(relevance.images)
        self._counts = counts[counts > 0]
        self._most = int(counts.max(initial=0)) if captions == "all" else captions

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._counts)

    def draw(self, random: np.random.Generator) -> list[Int[np.ndarray, "n"]]:
        """Return the pairs of each image in random order, at most as many as an epoch takes."""
        order = np.lexsort((random.random(len(self._images)), self._images))
        starts = self._counts.cumsum() - self._counts
        ends = starts + np.minimum(self._counts, self._most)
        return [order[start:end] for start, end in zip(starts, ends, strict=True)]


class ImageBatches(EpochBatches):
    """The batches of one epoch of images; their order and captions depend only on (seed, epoch).

    The cost of training an image network depends on the number of images in a batch, so several captions of each are
    nearly free. Every process gets its share of the images of a batch, with their captions.

    Args:
        pairs: the pairs of each image.
        batch_size: the number of images in a batch, over all processes. The remainder at the end is left out; fewer
            images than that make a single batch.
        seed: the recipe's seed.
        epoch: the number of the epoch.
        start: the number of batches that are already done, if a run is resumed.
        rank: the number of this process.
        num_processes: the number of processes.

    Raises:
        DataError: there are no images, or a batch has fewer images than there are processes.
    """

    unit: ClassVar[str] = "image"

    def __init__(
        self,
        pairs: PairsOfImages,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._pairs = pairs
        super().__init__(
            len(pairs),
            batch_size,
            seed=seed,
            epoch=epoch,
            start=start,
            rank=rank,
            num_processes=num_processes,
        )

    def __iter__(self) -> Iterator[BatchKey]:
        random = np.random.default_rng((self._view.seed, self._view.epoch))
        order, pairs = random.permutation(len(self._pairs)), self._pairs.draw(random)
        for images in self._batches_of(order):
            yield self._key(np.concatenate([pairs[image] for image in images]))
