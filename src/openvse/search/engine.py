"""The search engine: sentences or images in, the best images of an index out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from openvse.encoders import UnknownWord
from openvse.errors import DataError, ModelError
from openvse.media.images import one_or_many
from openvse.media.videos import ClipSource
from openvse.model import Calibration
from openvse.model.calibration import check_precision
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


@runtime_checkable
class Calibrated(Protocol):
    """A model that may know the probability of relevance that a score stands for."""

    @property
    def calibration(self) -> Calibration | None:
        """The curve from a sentence's score to probability; None where nothing has fitted one."""
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
        probability: that the image is relevant to the sentence, in an index of this size; None where the model keeps no
            curve from score to probability, and where an image is the query.
    """

    rank: int
    score: float
    id: str
    path: Path
    unknown_words: tuple[UnknownWord, ...] = ()
    probability: float | None = None


class SearchEngine:
    """Finds the images of an index that fit sentences, or resemble images.

    Args:
        model: the model that made the index.
        index: what to search.
        backend: how to find the nearest embeddings; by default exact search over the index's memory map, which scores
            with the model's similarity. An image as a query stands on the side of the texts.

    Attributes:
        calibration: the model's curve from score to probability, or None.

    Raises:
        IndexFormatError: another model made the index.

    Examples:
        >>> engine = SearchEngine(model, Index.open("index"))  # doctest: +SKIP
        >>> engine.search(["a dog on a beach"], top_k=3)[0][0].path  # doctest: +SKIP
    """

    def __init__(self, model: QueryEmbedder, index: Index, backend: VectorBackend | None = None) -> None:
        check_model(index.path, index.manifest, model.fingerprint)
        self._model, self._index = model, index
        self.calibration = model.calibration if isinstance(model, Calibrated) else None
        names = [item.id for item in index.items]
        self._backend = (
            ExactBackend(index.vectors, score=model.score, names=names) if backend is None else backend
        )

    @property
    def root(self) -> Path:
        """The folder whose images the index holds."""
        return Path(self._index.manifest.root)

    @property
    def num_images(self) -> int:
        """The number of images of the index."""
        return len(self._index)

    def search(
        self,
        queries: str | Sequence[str],
        top_k: int = 10,
        *,
        min_precision: float | None = None,
        expected: float | None = None,
    ) -> list[list[Hit]]:
        """Return the best images of every sentence, best first; fewer than ``top_k`` where there are fewer.

        An empty sentence is logged, and has no hits.

        Args:
            queries: any number of sentences; one that is given by itself is a sequence of one.
            top_k: how many images of each.
            min_precision: leave out the images that are less probable than this; so at least this share of the rest is
                expected to be relevant. Above 0 and at most 1.
            expected: how many images of the index are expected to be relevant to a sentence, for the probabilities; by
                default as many as in the data that the model's curve was fitted on (often 1).

        Raises:
            DataError: ``top_k`` is below 1, every sentence is empty, or one of the other numbers is out of its range.
            ModelError: ``min_precision`` is given, and the model keeps no curve from score to probability.
        """
        if min_precision is not None:
            require_curve(self.calibration)
            check_precision(min_precision)
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
        found = self._hits(self._model.encode_text(asked), top_k, self._unknown_words(asked))
        if self.calibration is not None:
            found = [with_probabilities(hits, self.calibration, self.num_images, expected) for hits in found]
        answers = iter(at_least(hits, min_precision) for hits in found)
        return [next(answers) if query.strip() else [] for query in queries]

    def search_images(self, images: ClipSource | Sequence[ClipSource], top_k: int = 10) -> list[list[Hit]]:
        """Return the images most like every given one; an image of the index finds itself first.

        The hits have no probability: a model's curve is about sentences.

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


def with_probabilities(
    hits: Sequence[Hit], calibration: Calibration, gallery: int, expected: float | None = None
) -> list[Hit]:
    """Return hits with the probabilities of their scores.

    Args:
        hits: of one sentence, with scores of the model that the curve is of.
        calibration: the curve.
        gallery: the number of images that were searched.
        expected: how many of them are expected to be relevant; see ``SearchEngine.search``.

    Raises:
        DataError: ``expected`` is not above 0.
    """
    scores = np.array([hit.score for hit in hits], dtype=np.float64)
    probabilities = calibration.probabilities(scores, gallery, expected).tolist()
    return [
        replace(hit, probability=probability) for hit, probability in zip(hits, probabilities, strict=True)
    ]


def at_least(hits: Sequence[Hit], min_precision: float | None) -> list[Hit]:
    """Leave out the hits that are less probable, and those without a probability; None keeps all."""
    if min_precision is None:
        return list(hits)
    return [hit for hit in hits if hit.probability is not None and hit.probability >= min_precision]


def require_curve(calibration: Calibration | None) -> Calibration:
    """Return the curve; raise ModelError where there is none."""
    if calibration is None:
        raise ModelError(
            "a wanted precision needs the curve from score to probability, which this model does not keep: fit it with "
            "'openvse calibrate MODEL DATA', on captioned images that the model was not trained on"
        )
    return calibration
