"""The search engine: sentences or images in, the best images of an index out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from openvse.encoders import UnknownWord
from openvse.errors import DataError
from openvse.media.images import one_or_many
from openvse.media.videos import ClipSource
from openvse.search.backend import ExactBackend, VectorBackend
from openvse.search.index import Index, check_model
from openvse.types import EmbeddingSet

_logger = logging.getLogger(__name__)


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


@runtime_checkable
class WordChecker(Protocol):
    """A model that can say which words it does not know."""

    def unknown_words(self, captions: Sequence[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned."""
        ...


@dataclass(frozen=True)
class Hit:
    """An image that answers a query.

    Attributes:
        rank: 1 is the best.
        score: similarity of query and image.
        id: path below the indexed folder.
        path: where the image is.
        unknown_words: words of the query that the model does not know; the same for all hits of a query.
    """

    rank: int
    score: float
    id: str
    path: Path
    unknown_words: tuple[UnknownWord, ...] = ()


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
        names = [item.id for item in index.items]
        self._backend = (
            ExactBackend(index.vectors, score=model.score, names=names) if backend is None else backend
        )

    @property
    def root(self) -> Path:
        """The folder whose images the index holds."""
        return Path(self._index.manifest.root)

    def search(self, queries: str | Sequence[str], top_k: int = 10) -> list[list[Hit]]:
        """Return the best images of every sentence, best first; fewer than ``top_k`` where there are fewer.

        An empty sentence is logged, and has no hits.

        Args:
            queries: any number of sentences; one that is given by itself is a sequence of one.
            top_k: how many images of each.

        Raises:
            DataError: ``top_k`` is below 1, or every sentence is empty.
        """
        queries = [queries] if isinstance(queries, str) else queries
        asked = [query for query in queries if query.strip()]
        if not asked:
            if queries:
                raise DataError("every query is empty: say what the image should show")
            return []
        if len(asked) < len(queries):
            _logger.warning(
                "an empty query has no hits (%d of %d are empty)", len(queries) - len(asked), len(queries)
            )
        answers = iter(self._hits(self._model.encode_text(asked), top_k, self._unknown_words(asked)))
        return [next(answers) if query.strip() else [] for query in queries]

    def search_images(self, images: ClipSource | Sequence[ClipSource], top_k: int = 10) -> list[list[Hit]]:
        """Return the images most like every given one; an image of the index finds itself first.

        Args:
            images: any number of images; one that is given by itself is a sequence of one.
            top_k: how many images of each.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: ``top_k`` is below 1.
        """
        given = one_or_many(images)
        return self._hits(self._model.encode_image(given), top_k, [()] * len(given)) if given else []

    def _unknown_words(self, queries: Sequence[str]) -> list[tuple[UnknownWord, ...]]:
        if not isinstance(self._model, WordChecker):
            return [()] * len(queries)
        return [tuple(words) for words in self._model.unknown_words(queries)]

    def _hits(
        self, queries: EmbeddingSet, top_k: int, unknown: Sequence[tuple[UnknownWord, ...]]
    ) -> list[list[Hit]]:
        if top_k < 1:
            raise DataError(f"top_k is {top_k}, allowed are 1 and more")
        scores, positions = self._backend.search(queries, top_k)
        items = self._index.items
        return [
            [
                Hit(rank, score, items[position].id, self._index.image_path(position), words)
                for rank, (score, position) in enumerate(zip(*row, strict=True), start=1)
            ]
            for words, *row in zip(unknown, scores.tolist(), positions.tolist(), strict=True)
        ]
