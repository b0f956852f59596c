"""Training batches: the pairs of an epoch in a seeded order, by pair or by image, and the batch that some make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch.utils.data import Dataset, Sampler

from openvse.batches.loaders import ImageLoader, RandomView, TextLoader
from openvse.corpus.corpus import Corpus
from openvse.errors import DataError
from openvse.types import Batch, Relevance


@dataclass(frozen=True)
class BatchKey:
    """The pairs of a batch, sent to the worker that builds the batch.

    Attributes:
        pairs: positions of the pairs in the corpus's relevance, for all processes together.
        view: the random views of this epoch. None for deterministic ones.
        rank: the number of the process that the batch is for.
        num_processes: the number of processes that share the pairs.
    """

    pairs: Int[np.ndarray, "P"]
    view: RandomView | None = None
    rank: int = 0
    num_processes: int = 1


CaptionsPerImage = int | Literal["all"]


class PairsOfImages:
    """The pairs of each image that has pairs.

    Args:
        relevance: the pairs of a corpus.
        captions: the largest number of pairs of an image in an epoch. ``all`` takes all.
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


class EpochBatches(Sampler[BatchKey]):
    """The batches of one epoch, in an order that depends only on (seed, epoch).

    Use it as ``DataLoader(dataset, sampler=EpochBatches(...), batch_size=None)``. Every process draws the same pairs
    and its dataset takes its share of their images, so that pairs do not depend on the number of processes.

    A batch consists of pairs, or of images with several of their captions. The cost of training an image network
    depends on the number of images in a batch, so further captions of each are nearly free.

    Args:
        pairs: the number of pairs in the corpus, or the pairs of each image for batches of images.
        batch_size: the number of pairs or images in a batch, over all processes. The remainder at the end is left out.
            Fewer pairs or images than this make a single batch.
        start: the number of batches that are already done, if a run is resumed.

    Raises:
        DataError: there are no pairs or images, or a batch has fewer of them than there are processes.
    """

    def __init__(
        self,
        pairs: int | PairsOfImages,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._of_images = None if isinstance(pairs, int) else pairs
        self._count, unit = (pairs, "pair") if isinstance(pairs, int) else (len(pairs), "image")
        size = min(batch_size, self._count)
        if size < num_processes or size < 1:
            raise DataError(
                f"{self._count} {unit}s in batches of {batch_size} for {num_processes} process(es): "
                f"every process needs at least one {unit}. Use fewer processes, larger batches or more data"
            )
        self._size, self._start = size, start
        self._view = RandomView(seed, epoch)
        self._rank, self._num_processes = rank, num_processes

    def __len__(self) -> int:
        return max(0, self._count // self._size - self._start)

    def __iter__(self) -> Iterator[BatchKey]:
        random = np.random.default_rng((self._view.seed, self._view.epoch))
        order = random.permutation(self._count)
        pairs_of = None if self._of_images is None else self._of_images.draw(random)
        for batch in range(self._start, self._count // self._size):
            drawn = order[batch * self._size : (batch + 1) * self._size]
            pairs = drawn if pairs_of is None else np.concatenate([pairs_of[image] for image in drawn])
            yield BatchKey(pairs, self._view, self._rank, self._num_processes)


class PairDataset(Dataset[Batch]):
    """Builds batches of a corpus from the pairs that they hold.

    Args:
        corpus: images, texts and their relevance.
        images: the loader of the images of the corpus.
        texts: the loader of the captions.

    Raises:
        DataError: the numbers of the three disagree.
    """

    def __init__(self, corpus: Corpus, images: ImageLoader, texts: TextLoader) -> None:
        if (len(images), len(texts)) != (len(corpus), len(corpus.captions)):
            raise DataError(
                f"{corpus.name} has {len(corpus)} images and {len(corpus.captions)} captions, "
                f"but got {len(images)} images and {len(texts)} texts: make them from one corpus"
            )
        self._image_ids = corpus.image_ids
        self._images = images
        self._texts = texts
        self._pair_images, self._pair_texts = corpus.relevance.images, corpus.relevance.texts
        # The pairs of text t are by_text[starts[t] : starts[t] + counts[t]].
        self._by_text = np.argsort(self._pair_texts, kind="stable")
        self._counts = np.bincount(self._pair_texts, minlength=len(texts))
        self._starts = self._counts.cumsum() - self._counts

    def __len__(self) -> int:
        return len(self._pair_images)

    def __getitem__(self, key: BatchKey) -> Batch:
        """Build a batch in which each image and each text occurs once, for any number of its pairs.

        The images of the pairs are divided among the processes, and every caption follows its image: captions of one
        image are never negatives of each other, on any process.

        Raises:
            DataError: there are fewer images than processes, or no image of the batch can be used.
        """
        everywhere = np.unique(self._pair_images[key.pairs])
        images = everywhere[key.rank :: key.num_processes]
        if not len(images):
            raise DataError(
                f"a batch of {len(key.pairs)} pairs has fewer images than the {key.num_processes} processes: "
                "use larger batches or fewer processes"
            )
        inputs, usable = self._images.load(images, key.view)
        images = images[usable]
        pairs = key.pairs[np.isin(self._pair_images[key.pairs], images)]
        texts = np.unique(self._pair_texts[pairs])
        partners, rows = self._partners(everywhere, texts)
        return Batch(
            images=inputs,
            texts=self._texts.take(texts),
            positives=torch.from_numpy(_matrix(images, len(texts), partners, rows)),
            image_keys=torch.from_numpy(images),
            partners=torch.from_numpy(np.stack((partners, rows), axis=1)),
            description=f"{len(pairs)} pairs: {self._name(int(pairs[0]))} to {self._name(int(pairs[-1]))}",
        )

    def _name(self, pair: int) -> str:
        return f"pair {pair} (image {self._image_ids[self._pair_images[pair]]})"

    def _partners(
        self, images: Int[np.ndarray, "I"], texts: Int[np.ndarray, "T"]
    ) -> tuple[Int[np.ndarray, "R"], Int[np.ndarray, "R"]]:
        """Return the image and text row of every relevant pair of these images, whether it was drawn or not."""
        counts = self._counts[texts]
        rows = np.repeat(np.arange(len(texts)), counts)
        within = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        partners = self._pair_images[self._by_text[np.repeat(self._starts[texts], counts) + within]]
        drawn = np.isin(partners, images)
        return partners[drawn], rows[drawn]


def _matrix(
    images: Int[np.ndarray, "I"], num_texts: int, partners: Int[np.ndarray, "R"], rows: Int[np.ndarray, "R"]
) -> Bool[np.ndarray, "I T"]:
    """Mark the pairs whose image is one of these, which are sorted."""
    own, positives = np.isin(partners, images), np.zeros((len(images), num_texts), dtype=bool)
    positives[np.searchsorted(images, partners[own]), rows[own]] = True
    return positives
