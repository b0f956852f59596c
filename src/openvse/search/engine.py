"""The search engine: sentences or images in, the best images of an index out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.encoders.vocabulary import UnknownWord
from openvse.errors import DataError, ModelError
from openvse.index.conditions import Condition, allowed_items, parse_conditions
from openvse.index.index import Index
from openvse.index.manifest import check_model
from openvse.media.images import one_or_many
from openvse.media.segments import file_of
from openvse.media.videos import ClipSource
from openvse.model.calibration import Calibration
from openvse.search.backend import Engine, FilteringBackend, VectorBackend
from openvse.search.hits import Chances, Hit, best_of_files
from openvse.search.query import EmbeddedQueries, Query, embed_queries

if TYPE_CHECKING:
    from torch import Tensor

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


def is_inner_product(model: QueryEmbedder) -> bool:
    """Return whether the score of a model is the largest inner product, and nothing else."""
    from openvse.similarities import SetMax

    similarity = getattr(model, "similarity", None)
    return isinstance(similarity, SetMax) and type(similarity).forward is SetMax.forward


class SearchEngine:
    """Finds the images of an index that fit sentences, or resemble images.

    Args:
        model: the model that made the index.
        index: what to search.
        backend: how to find the nearest embeddings; by default the engine of the index. The exact one scores with the
            model's similarity. An image as a query stands on the side of the texts.
        engine: the engine that is wanted, without a backend: that of the index, or ``exact``.
        engine_url: of the engine's server, with its secrets, which the index does not know; None takes what the index
            and the environment say.

    Attributes:
        backend: what finds the nearest embeddings.
        calibration: the model's curve from score to probability; None where it keeps none, and for an index of
            sentences.

    Raises:
        IndexFormatError: another model made the index.
        EngineError: the engine cannot be reached, or cannot serve the model.

    Examples:
        >>> engine = SearchEngine(model, Index.open("index"))  # doctest: +SKIP
        >>> engine.search(["a dog on a beach"], top_k=3)[0][0].path  # doctest: +SKIP
    """

    def __init__(
        self,
        model: QueryEmbedder,
        index: Index,
        backend: VectorBackend | None = None,
        *,
        engine: str | None = None,
        engine_url: str | None = None,
    ) -> None:
        check_model(index.path, index.manifest, model.fingerprint)
        self._model, self._index = model, index
        self.backend: VectorBackend = self._opened(engine, engine_url) if backend is None else backend
        of_images = index.manifest.holds != "sentences"
        self.calibration = model.calibration if of_images and isinstance(model, Calibrated) else None

    def _opened(self, engine: str | None = None, url: str | None = None) -> VectorBackend:
        """Return the engine of the index; all of them compute with PyTorch, which is imported here."""
        from openvse.search.engines import open_engine
        from openvse.search.exact import ExactBackend

        index, is_inner = self._index, is_inner_product(self._model)
        exact = ExactBackend(index.segments, score=self._score, names=index.table.ids, inner=is_inner)
        return open_engine(index, exact, name=engine, url=url, model=self._model, is_linear=is_inner)

    def _as_set(self, vectors: Float[np.ndarray, "n K D"]) -> EmbeddingSet:
        """Return embeddings of the index as the backend takes them."""
        import torch

        from openvse.types import EmbeddingSet

        return EmbeddingSet(torch.from_numpy(vectors), torch.ones(vectors.shape[:2], dtype=torch.bool))

    def _as_weights(self, weights: Float[np.ndarray, "Q P"]) -> Float[Tensor, "Q P"]:
        """Return the weights of the parts of queries as the backend takes them."""
        import torch

        return torch.from_numpy(weights)

    def _score(self, items: EmbeddingSet, queries: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score items against queries; sentences take the side of the texts, and what asks for them the other."""
        if self._index.manifest.holds == "sentences":
            return self._model.score(queries, items).T
        return self._model.score(items, queries)

    def close(self) -> None:
        """Let go of what the engine has open, such as the connection to a server; nothing is asked of it afterwards."""
        if isinstance(self.backend, Engine):
            self.backend.close()

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> Path:
        """The folder whose images the index holds."""
        return Path(self._index.manifest.root)

    def chances(
        self,
        where: Sequence[Condition | str] = (),
        expected: float | None = None,
        min_precision: float | None = None,
    ) -> Chances:
        """Return what gives the hits of a sentence their probabilities; see ``find`` for the arguments."""
        return Chances(self.calibration, self._num_searched(self._allowed(where)), expected, min_precision)

    def _num_searched(self, allowed: Bool[np.ndarray, "count"] | None) -> int:
        return max(1, len(self._index) if allowed is None else int(allowed.sum()))

    def _allowed(self, where: Sequence[Condition | str]) -> Bool[np.ndarray, "count"] | None:
        given = parse_conditions(where)
        return allowed_items(self._index, given) if given else None

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
        chances = self.chances((), expected, min_precision)
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
        found = self._hits(self._model.encode_text(asked), top_k, self._unknown_words(asked))
        answers = map(chances.of, found)
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

    def find(
        self,
        queries: Query | Sequence[Query],
        top_k: int = 10,
        *,
        skip: int = 0,
        min_score: float | None = None,
        where: Sequence[Condition | str] = (),
        min_precision: float | None = None,
        expected: float | None = None,
        one_per_file: bool = False,
    ) -> list[list[Hit]]:
        """Return the best items for queries of several parts, of those that fulfil some conditions.

        Args:
            queries: any number of queries; one that is given by itself is a sequence of one.
            top_k: how many items of each.
            skip: how many of the best to leave out, for a page after the first; ranks go on.
            min_score: the lowest score of a hit.
            where: conditions that all hits fulfil, such as ``"date >= 2024"``; see ``index.conditions``.
            min_precision: the lowest probability of a hit; see ``search``. Only for queries that are just a sentence.
            expected: see ``search``; of the images that fulfil the conditions.
            one_per_file: of the segments of a clip, only the best one.

        Raises:
            BadImageError: an image cannot be decoded.
            DataError: a number is outside its range, a condition cannot be understood, or the index holds no item of an
                id.
            ModelError: the backend takes no queries of several parts, or no conditions; or ``min_precision`` is given,
                and the model keeps no curve.
        """
        asked = [queries] if isinstance(queries, Query) else list(queries)
        if top_k < 1 or skip < 0:
            raise DataError(f"top_k is {top_k} and skip {skip}: allowed are 1 and more, and 0 and more")
        if not asked:
            return []
        conditions = parse_conditions(where)
        allowed = allowed_items(self._index, conditions) if conditions else None
        chances = Chances(self.calibration, self._num_searched(allowed), expected, min_precision)
        chances.check(asked)
        embedded = embed_queries(asked, self._model.encode_text, self._model.encode_image, self._stored)
        wanted = top_k + skip + any(query.like is not None for query in asked)
        unknown = self._unknown_words([query.text for query in asked])
        found = self._named(*self._nearest(embedded, wanted, allowed, conditions), unknown)
        most = len(self._index)
        while (
            one_per_file and wanted < most and any(len(best_of_files(hits)) < top_k + skip for hits in found)
        ):
            wanted *= 4
            found = self._named(*self._nearest(embedded, wanted, allowed, conditions), unknown)
        if one_per_file:
            found = [best_of_files(hits) for hits in found]
        page, lowest = slice(skip, skip + top_k), -math.inf if min_score is None else min_score
        return [_page(query, hits, chances, page, lowest) for query, hits in zip(asked, found, strict=True)]

    def _nearest(
        self,
        queries: EmbeddedQueries,
        top_k: int,
        allowed: Bool[np.ndarray, "count"] | None,
        conditions: Sequence[Condition],
    ) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
        """Return scores and positions of the best items."""
        weights = None if queries.weights is None else self._as_weights(queries.weights)
        if weights is None and allowed is None:
            return self.backend.search(queries.parts, top_k)
        if isinstance(self.backend, Engine):
            return self.backend.search_some(
                queries.parts, top_k, weights=weights, allowed=allowed, where=conditions
            )
        if isinstance(self.backend, FilteringBackend):
            return self.backend.search_some(queries.parts, top_k, weights=weights, allowed=allowed)
        raise ModelError(
            "this backend takes neither queries of several parts nor conditions: leave them out, or take the exact "
            "search"
        )

    def _stored(self, ids: Sequence[str]) -> EmbeddingSet:
        """Return the embeddings of items of the index."""
        positions = []
        for item_id in ids:
            position = self._index.position(item_id)
            if position is None:
                raise DataError(f"the index holds no item {item_id}: {self._remedy(item_id)}")
            positions.append(position)
        return self._as_set(self._index.gather(np.array(positions)).astype(np.float32))

    def _remedy(self, item_id: str) -> str:
        """Return what to give instead of an id that the index does not hold."""
        first = next((name for name in self._index.table.ids if file_of(name) == item_id), "")
        if first:
            return f"the clip is cut into segments; give one of them, such as {first}"
        return "give the path below the indexed folder"

    def _unknown_words(self, queries: Sequence[str]) -> list[tuple[UnknownWord, ...]]:
        if not isinstance(self._model, WordChecker):
            return [()] * len(queries)
        return [tuple(words) for words in self._model.unknown_words(queries)]

    def _hits(
        self, queries: EmbeddingSet, top_k: int, unknown: Sequence[tuple[UnknownWord, ...]]
    ) -> list[list[Hit]]:
        if top_k < 1:
            raise DataError(f"top_k is {top_k}: give 1 or more")
        return self._named(*self.backend.search(queries, top_k), unknown)

    def _named(
        self,
        scores: Float[Tensor, "Q k"],
        positions: Int[Tensor, "Q k"],
        unknown: Sequence[tuple[UnknownWord, ...]],
    ) -> list[list[Hit]]:
        """Return the items at some positions as hits."""
        ids = self._index.table.ids
        spans = {
            position: self._index.span(position) or (None, None)
            for position in set(positions.flatten().tolist())
        }
        return [
            [
                Hit(
                    rank,
                    score,
                    ids[position],
                    self._index.image_path(position),
                    words,
                    None,
                    *spans[position],
                )
                for rank, (score, position) in enumerate(zip(*row, strict=True), start=1)
            ]
            for words, *row in zip(unknown, scores.tolist(), positions.tolist(), strict=True)
        ]


def _page(query: Query, hits: Sequence[Hit], chances: Chances, page: slice, lowest: float) -> list[Hit]:
    """Return some of the hits of a query, numbered, without those that score too low, and without its own item."""
    others = [hit for hit in hits if hit.id != query.like]
    some = [replace(hit, rank=rank) for rank, hit in enumerate(others, start=1)][page]
    good = [hit for hit in some if hit.score >= lowest]
    return chances.of(good) if query.is_sentence else good
