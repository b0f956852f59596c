"""The search engine, which finds the best images of an index for sentences or images."""

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
        """Score all pairs with the model's similarity; the score of a pair must not depend on other items."""
        ...


@runtime_checkable
class WordChecker(Protocol):
    """A model that can tell which words it does not know."""

    def unknown_words(self, captions: Sequence[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned."""
        ...


@dataclass(frozen=True)
class Hit:
    """An image that was found for a query.

    Attributes:
        rank: the rank of the image; 1 is the best.
        score: the similarity of query and image.
        id: the path below the indexed folder.
        path: the path of the image.
        unknown_words: the words of the query that the model does not know; they are the same for all hits of a query.
    """

    rank: int
    score: float
    id: str
    path: Path
    unknown_words: tuple[UnknownWord, ...] = ()


class SearchEngine:
    """Finds the images of an index that fit sentences or resemble images.

    Args:
        model: the model that made the index.
        index: the index to search.
        backend: the search for the nearest embeddings. Default: an exact search over the memory map of the index, which
            scores with the model's similarity; an image as a query takes the place of a text.

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
        """Return the best images for every sentence, best first; at most ``top_k`` for each.

        An empty sentence has no hits, and is logged.

        Args:
            queries: one sentence or a sequence of sentences.
            top_k: the number of images for each.

        Raises:
            DataError: ``top_k`` is below 1, or all sentences are empty.
        """
        queries = [queries] if isinstance(queries, str) else queries
        asked = [query for query in queries if query.strip()]
        if not asked:
            if queries:
                raise DataError("all queries are empty: give a sentence that says what the image should show")
            return []
        if len(asked) < len(queries):
            _logger.warning(
                "an empty query has no hits (%d of %d are empty)", len(queries) - len(asked), len(queries)
            )
        answers = iter(self._hits(self._model.encode_text(asked), top_k, self._unknown_words(asked)))
        return [next(answers) if query.strip() else [] for query in queries]

    def search_images(self, images: ClipSource | Sequence[ClipSource], top_k: int = 10) -> list[list[Hit]]:
        """Return the images that resemble every given image most; an image of the index finds itself first.

        Args:
            images: one image or a sequence of images.
            top_k: the number of images for each.

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
            raise DataError(f"top_k is {top_k}: give 1 or more")
        scores, positions = self._backend.search(queries, top_k)
        items = self._index.items
        return [
            [
                Hit(rank, score, items[position].id, self._index.image_path(position), words)
                for rank, (score, position) in enumerate(zip(*row, strict=True), start=1)
            ]
            for words, *row in zip(unknown, scores.tolist(), positions.tolist(), strict=True)
        ]
