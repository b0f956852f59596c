"""The base of every similarity, which computes a score matrix from two EmbeddingSets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openvse.errors import ModelError
from openvse.registry import Configured
from openvse.types import EmbeddingSet, PairWeights


class Similarity(Configured, nn.Module, ABC):
    """Scores every image against every text. A pair's score depends only on the embeddings of its two items.

    So the scores can be computed in blocks. Exact search, which scores an index block by block with the model's
    similarity, is correct for every similarity. ``indexable`` promises more, for libraries of inner products.

    The promise holds for one ``forward``. A subclass that overrides ``forward`` does not inherit the promise: without
    its own declaration of ``indexable``, it is not indexable.

    Embeddings are scored on the device of the similarity, which moves with its model, whether or not it has weights.

    Attributes:
        indexable: True when the scores rank like the largest inner product between single embeddings of
            the two items, so that an inner-product search over single embeddings finds exactly the best items.
        near_maximum: True when the score is near the largest inner product. An inner-product search then proposes good
            items, and the score puts them in order.
        is_cosine: True when the score of two items with one embedding each is their cosine. An option may decide it.
        reads_unit_vectors: True when the similarity compares only embeddings of unit length.
        reads_gaussians: True when the embeddings must be distributions (``Aggregator.yields_gaussian``).
        attends: True when it weighs the embeddings of both sides for each pair, which ``attended`` shows.
    """

    indexable: ClassVar[bool] = False
    near_maximum: ClassVar[bool] = False
    is_cosine: bool = True
    reads_unit_vectors: ClassVar[bool] = True
    reads_gaussians: ClassVar[bool] = False
    attends: bool = False

    _place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device to which the similarity was moved."""
        return self._place.device

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        nearest = next(base for base in cls.__mro__ if {"forward", "indexable"} & vars(base).keys())
        if "indexable" not in vars(nearest):  # the subclass overrides forward without its own promise
            cls.indexable, cls.near_maximum = False, vars(nearest).get("near_maximum", False)

    def __call__(self, images: object, texts: object) -> Float[Tensor, "I T"]:
        """Score all pairs, by ``forward``.

        Raises:
            ModelError: the images or the texts are no embeddings.
        """
        self.check(images, texts)
        scores: Tensor = super().__call__(images, texts)
        return scores

    @staticmethod
    def check(*given: object) -> None:
        """Raise ModelError unless all are embeddings."""
        for each in given:
            if not isinstance(each, EmbeddingSet):
                raise ModelError(f"embeddings are compared, got {type(each).__name__}: encode images and texts first")

    @abstractmethod
    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Embeddings that a mask excludes never count."""

    @abstractmethod
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        """Score some pairs without a gradient: image ``rows[p]`` with text ``columns[p]``."""

    def attended(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> PairWeights | None:
        """Return the weight of each embedding in the k comparisons of some pairs, which sum to 1, with a gradient.

        None if it weighs none. Memory holds these pairs.
        """
        return None


def score_blocks(
    similarity: Similarity, images: EmbeddingSet, texts: EmbeddingSet, block_size: int = 1024
) -> Iterator[tuple[slice, slice, Float[Tensor, "i t"]]]:
    """Yield the score matrix in blocks of at most ``block_size`` per side, as (image rows, text rows, scores).

    Memory is bounded by the block, whatever I and T are.
    """
    with torch.inference_mode():
        for rows in slices(len(images), block_size):
            for columns in slices(len(texts), block_size):
                yield rows, columns, similarity(images[rows], texts[columns])


def slices(count: int, size: int) -> list[slice]:
    """Return the blocks of a number of items. The last one may be smaller."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
