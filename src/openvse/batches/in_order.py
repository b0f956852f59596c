"""Batches for evaluation and extraction: every image once, every text once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch.utils.data import DataLoader, Dataset

from openvse.batches.loaders import ImageLoader, TextLoader
from openvse.errors import BadImageError
from openvse.pipeline import ahead
from openvse.types import Inputs


class PlacedInputs(NamedTuple):
    """Inputs with the positions of their items in the corpus."""

    positions: Int[np.ndarray, "B"]
    inputs: Inputs

    def pinned(self) -> PlacedInputs:
        """Return the same in memory that a GPU can copy while it computes."""
        return PlacedInputs(self.positions, self.inputs.pinned())


ItemT = TypeVar("ItemT")
PinnedT = TypeVar("PinnedT", bound="Pinnable")


class Pinnable(Protocol):
    """A batch that can be put into memory which a GPU copies while it computes."""

    def pinned(self: PinnedT) -> PinnedT:
        """Return the same batch in such memory."""
        ...


def ready_for(device: torch.device, batches: Iterable[PinnedT]) -> Iterable[PinnedT]:
    """Yield batches in their order. For a device other than the CPU, a thread reads and pads them ahead."""
    if device.type == "cpu":
        return batches
    return ahead(batch.pinned() if device.type == "cuda" else batch for batch in batches)


def image_batches(
    images: ImageLoader,
    batch_size: int,
    *,
    start: int = 0,
    num_workers: int = 0,
    rank: int = 0,
    num_processes: int = 1,
) -> Iterator[PlacedInputs]:
    """Yield all usable images in order. With several processes, each yields its own batches.

    Args:
        images: the images of a corpus.
        batch_size: the number of images per batch.
        start: the position of the first image, if earlier ones are already done.
        num_workers: the number of processes that load ahead. 0 loads in this process.
        num_processes: the number of processes that take turns with the batches.
    """
    loader = DataLoader(
        _ImageBatches(images, batch_size, start, slice(rank, None, num_processes)),
        batch_size=None,
        num_workers=num_workers,
        collate_fn=as_it_is,
    )
    yield from (batch for batch in loader if batch is not None)


def text_batches(
    texts: TextLoader, batch_size: int, *, rank: int = 0, num_processes: int = 1
) -> Iterator[PlacedInputs]:
    """Yield all texts by length, so that little is padding. With several processes, each yields its own batches."""
    order = np.argsort(texts.lengths.numpy(), kind="stable")
    for start in range(rank * batch_size, len(order), num_processes * batch_size):
        positions = order[start : start + batch_size]
        yield PlacedInputs(positions, texts.take(positions))


class _ImageBatches(Dataset[PlacedInputs | None]):
    def __init__(self, images: ImageLoader, batch_size: int, start: int, mine: slice) -> None:
        self._images, self._batch_size = images, batch_size
        self._starts = range(start, len(images), batch_size)[mine]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, batch: int) -> PlacedInputs | None:
        first = self._starts[batch]
        positions = np.arange(first, min(first + self._batch_size, len(self._images)))
        try:
            inputs, usable = self._images.load(positions)
        except BadImageError:
            return None  # each of them is logged already
        return PlacedInputs(positions[usable], inputs)


def as_it_is(item: ItemT) -> ItemT:
    """Return a batch unchanged, so that DataLoader does not collate it."""
    return item
