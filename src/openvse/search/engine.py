"""The search engine: sentences or images in, the best images of an index out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from openvse.errors import DataError
from openvse.media.videos import ClipSource
from openvse.search.backend import ExactBackend, VectorBackend
from openvse.search.index import Index, check_model
from openvse.types import EmbeddingSet


@runtime_checkable
class QueryEmbedder(Protocol):
    """The methods of a model that the search engine uses."""

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the model."""
        ...

    def encode_text(self, captions: Sequence[str]) -> EmbeddingSet:
        """Embed sentences."""
        ...

    def encode_image(self, images: Sequence[ClipSource]) -> EmbeddingSet:
        """Embed images or clips."""
        ...

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs by the model's similarity; the score of a pair must not depend on the other items."""
        ...


@dataclass(frozen=True)
class Hit:
    """An image that answers a query.

    Attributes:
        rank: 1 is the best.
        score: similarity of query and image.
        id: path below the indexed folder.
        path: where the image is.
    """

    rank: int
    score: float
    id: str
    path: Path


class SearchEngine:
    """Finds the images of an index that fit sentences, or resemble images.

    Args:
        model: the model that made the index.
        index: what to search.
        backend: how to find the nearest embeddings; by default exact search over the index's memory map, which scores
            with the model's similarity. An image as a query stands on the side of the texts.

    Raises:
        IndexFormatError: another model made the index.

    Examples:
        >>> engine = SearchEngine(model, Index.open("index"))  # doctest: +SKIP
        >>> engine.search(["a dog on a beach"], top_k=3)[0][0].path  # doctest: +SKIP
    """

    def __init__(self, model: QueryEmbedder, index: Index, backend: VectorBackend | None = None) -> None:
        check_model(index.path, index.manifest, model.fingerprint)
        self._model, self._index = model, index
        self._backend = ExactBackend(index.vectors, score=model.score) if backend is None else backend

    def search(self, queries: Sequence[str], top_k: int = 10) -> list[list[Hit]]:
        """Return the best images of every sentence, best first; fewer than ``top_k`` where there are fewer.

        Raises:
            DataError: ``top_k`` is below 1.
        """
        return self._hits(self._model.encode_text(queries), top_k) if queries else []

    def search_images(self, images: Sequence[ClipSource], top_k: int = 10) -> list[list[Hit]]:
        """Return the images most like every given one; an image of the index finds itself first.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: ``top_k`` is below 1.
        """
        return self._hits(self._model.encode_image(images), top_k) if images else []

    def _hits(self, queries: EmbeddingSet, top_k: int) -> list[list[Hit]]:
        if top_k < 1:
            raise DataError(f"top_k is {top_k}, allowed are 1 and more")
        scores, positions = self._backend.search(queries, top_k)
        return [
            [
                Hit(rank, score, self._index.items[position].id, self._index.image_path(position))
                for rank, (score, position) in enumerate(zip(*row, strict=True), start=1)
            ]
            for row in zip(scores.tolist(), positions.tolist(), strict=True)
        ]
