"""Queries of one or several parts, and the wanted page of hits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError, check_number
from openvse.files import several, whole_characters
from openvse.indexing.conditions import Condition
from openvse.media.images import ONE_IMAGE, one_or_several
from openvse.media.names import names_image
from openvse.media.videos import ClipSource
from openvse.runtime.arrays import ArraySet

OneQuery: TypeAlias = "str | Query | ClipSource"
"""A query by itself: a sentence, an image, or a ``Query``."""

Only = Literal["words", "similarity"]
"""One of the two rankings of a search."""

OnePer = Literal["file", "scene"]
"""The unit of which only the first hit is listed."""


@dataclass(frozen=True)
class Query:
    """A query. The score of an item is the weighted mean of the scores of the query's parts.

    Content to avoid is subtracted: ``avoid_weight`` times the score of each of its terms. For a model with one
    embedding an item and the cosine, this is a search with the weighted sum of the embeddings.

    Attributes:
        text: a sentence, or "". U+FFFD replaces half a character, here and in ``avoid``.
        image: an image, or None.
        like: the id of an item of the index, whose stored embeddings count. It is not among its own hits.
        avoid: sentences that the items should not fit, or one sentence.
        image_weight: weight of the image, and of the item, beside a text, which has 1 minus it. From 0 to 1.
        avoid_weight: see above. 0 and more.

    Raises:
        DataError: the query is empty, ``like`` or ``avoid`` holds no text, or a weight is outside its range, or is set
            although there is nothing to weigh.
    """

    text: str = ""
    image: ClipSource | None = None
    like: str | None = None
    avoid: Sequence[str] = ()
    image_weight: float = 0.5
    avoid_weight: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", whole_characters(*several([self.text], "query")))
        object.__setattr__(self, "avoid", tuple(map(whole_characters, several(self.avoid, "avoid"))))
        if not self.text.strip() and self.image is None and self.like is None:
            raise DataError("the query is empty: give a sentence, an image, or an item of the index")
        several(["" if self.like is None else self.like], "like")
        check_number("image_weight", self.image_weight, 0, 1)
        check_number("avoid_weight", self.avoid_weight, 0)
        if self.image_weight != 0.5 and not (self.text.strip() and self.shows):
            raise DataError("image_weight is for a text with an image or an item: leave it out, or give both")
        if self.avoid_weight != 0.5 and not self.avoid:
            raise DataError("avoid_weight is for what the items should not fit: leave it out, or give avoid")

    @classmethod
    def of(cls, given: Any) -> Query:
        """Return a sentence, an image in any form, or a query, as a query. Text that ends like an image is its path."""
        if isinstance(given, Query):
            return given
        if isinstance(given, str) and not names_image(given):
            return cls(given)
        if isinstance(given, str | Path) and not _is_file(given):
            raise DataError(
                f"{given}: this image does not exist: check the path, or give Query(text=...) for a sentence"
            )
        if not isinstance(given, (str, *ONE_IMAGE)):
            raise DataError(f"a query is of the type {type(given).__name__}: give a sentence or an image")
        (image,) = one_or_several(given, "a query")  # the bytes of an open file
        return cls(image=image)

    @property
    def shows(self) -> bool:
        """Whether it has an image, or an item of the index."""
        return self.image is not None or self.like is not None

    @property
    def is_sentence(self) -> bool:
        """Whether it is a sentence and nothing else, so that its scores are the model's."""
        return not self.shows and not any(term.strip() for term in self.avoid)

    @property
    def is_image(self) -> bool:
        """Whether it is an image and nothing else."""
        avoids = any(term.strip() for term in self.avoid)
        return self.image is not None and self.like is None and not (avoids or self.text.strip())

    def weights(self) -> tuple[float, float, float]:
        """Return the weights of text, image and item, which add up to 1."""
        seen = [self.image is not None, self.like is not None]
        share = self.image_weight if self.text.strip() else 1.0
        each = share / max(1, sum(seen))
        return (1 - share if any(seen) else 1.0) if self.text.strip() else 0.0, each * seen[0], each * seen[1]


def _is_file(path: str | Path) -> bool:
    """Return whether there is such a file. False for a name that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def each_query(given: Any) -> list[Query | str]:
    """Return any number of sentences, images and queries as queries. An empty sentence stays one."""
    asked = [given] if isinstance(given, Query) else one_or_several(given, "queries")
    return [each if isinstance(each, str) and not each.strip() else Query.of(each) for each in asked]


@dataclass(frozen=True)
class Page:
    """The hits of a query to return.

    Attributes:
        top_k: the number of hits of each query, 1 and more.
        skip: the number of best hits to leave out, for a page after the first. Ranks go on.
        where: conditions that all hits fulfil, or one, such as ``"date >= 2024"``. See ``openvse.indexing.conditions``.
        min_score: the lowest score of a hit.
        min_precision: the lowest probability of a hit, so that at least this share of the hits is expected to be
            relevant. Above 0 and at most 1, only for queries that are just a sentence.
        expected: the expected number of items that are relevant to a sentence, for the probabilities. Default: as in
            the data of the model's curve (often 1).
        one_per: ``file`` for only the best segment of each clip, ``scene`` for only the first of items that are nearly
            the same, each with a count of the others (``Hit.alike``). None lists all.
        only: ``words`` for items with words of the sentence, ``similarity`` for the order by scores. None joins both.

    Raises:
        DataError: a number is outside its range, ``where`` holds no conditions, or a word is not allowed.
    """

    top_k: int = 10
    skip: int = 0
    where: Sequence[Condition | str] = ()
    min_score: float | None = None
    min_precision: float | None = None
    expected: float | None = None
    one_per: OnePer | None = None
    only: Only | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", tuple(several(self.where, "where", (str, Condition))))
        check_number("top_k", self.top_k, 1, whole=True)
        check_number("skip", self.skip, 0, whole=True)
        ranges = {"min_score": (-math.inf, math.inf), "min_precision": (0, 1), "expected": (0, math.inf)}
        for name, (least, most) in ranges.items():
            if (given := getattr(self, name)) is not None:
                check_number(name, given, least, most, above=True)
        if self.one_per not in (None, *get_args(OnePer)):
            raise DataError(f"one_per is {self.one_per!r}: give file, scene, or nothing for all hits")
        if self.only not in (None, *get_args(Only)):
            raise DataError(f"only is {self.only!r}: give words, similarity, or nothing for both")

    @property
    def is_limited(self) -> bool:
        """Whether hits with low scores are left out."""
        return self.min_score is not None or self.min_precision is not None


@dataclass(frozen=True)
class EmbeddedQueries:
    """The embeddings of the parts of some queries, and their weights in each, or None if each query is one part."""

    parts: ArraySet
    weights: Float[np.ndarray, "Q P"] | None

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.parts) if self.weights is None else len(self.weights)

    def some(self, rows: Int[np.ndarray, "n"]) -> EmbeddedQueries:
        """Return some of the queries, with no parts but their own, without weights if each is one part."""
        if self.weights is None:
            return EmbeddedQueries(self.parts[rows], None)
        weights = self.weights[rows]
        if bool(((weights != 0).sum(axis=1) == 1).all() and (weights.max(axis=1) == 1).all()):
            return EmbeddedQueries(self.parts[weights.argmax(axis=1)], None)
        used = np.flatnonzero(weights.any(axis=0))
        return EmbeddedQueries(self.parts[used], weights[:, used])

    def searches(self, *, is_linear: bool) -> list[Float[np.ndarray, "_ D"]] | None:
        """Return the vectors whose nearest neighbours to find, for each query, or None if no sum gives the score.

        Without weights these are its embeddings. With weights it is one weighted sum. Its score is the query's only if
        ``is_linear``: items have one embedding each, and are compared by inner products.
        """
        vectors, mask = self.parts.vectors, self.parts.mask
        if self.weights is None:
            return [some[exists].astype(np.float32) for some, exists in zip(vectors, mask, strict=True)]
        if not is_linear or mask.shape[1] > 1:
            return None
        sums = self.weights.astype(np.float32) @ vectors[:, 0].astype(np.float32)
        return list(sums[:, np.newaxis])

    @property
    def scale(self) -> float:
        """The largest factor by which weights enlarge the error of a score."""
        return 1.0 if self.weights is None else max(1.0, float(np.abs(self.weights).sum(axis=1).max()))

    @property
    def flat(self) -> Float[np.ndarray, "M D"]:
        """The embeddings of all parts. A masked one is replaced by another of its part, which changes no maximum."""
        vectors, mask = self.parts.vectors, self.parts.mask
        places = np.where(mask, np.arange(mask.shape[1]), mask.argmax(axis=1)[:, np.newaxis])
        taken = np.take_along_axis(vectors, places[:, :, np.newaxis], axis=1)
        return np.ascontiguousarray(taken.reshape(-1, vectors.shape[2]), np.float32)

    def weighted(self, scores: Float[np.ndarray, "n P"]) -> Float[np.ndarray, "n Q"]:
        """Return the scores of the queries, from the scores of their parts."""
        return scores if self.weights is None else scores @ self.weights.astype(scores.dtype).T

    def liked(self) -> list[Float[np.ndarray, "_ D"]]:
        """Return the embeddings of the parts of each query that have a positive weight."""
        assert self.weights is not None
        vectors, mask = self.parts.vectors, self.parts.mask
        return [vectors[row > 0][mask[row > 0]] for row in self.weights]


def as_arrays(embedded: Any) -> ArraySet:
    """Return an embedding set of a model as arrays. Tensors on the CPU share their memory."""
    return ArraySet(np.asarray(embedded.vectors), np.asarray(embedded.mask))


def embed_queries(
    queries: Sequence[Query],
    texts: Callable[[Sequence[str]], ArraySet],
    images: Callable[[Sequence[ClipSource]], ArraySet],
    items: Callable[[Sequence[str]], ArraySet],
) -> EmbeddedQueries:
    """Embed every part of some queries once, each kind together. ``items`` takes ids."""
    asked: list[tuple[Callable[[Any], ArraySet], list[tuple[int, Any, float]]]]
    asked = [(texts, []), (images, []), (items, [])]
    for number, query in enumerate(queries):
        given = query.text if query.text.strip() else None, query.image, query.like
        for (_, used), part, weight in zip(asked, given, query.weights(), strict=True):
            if part is not None:
                used.append((number, part, weight))
        asked[0][1].extend((number, term, -query.avoid_weight) for term in query.avoid if term.strip())
    parts: list[ArraySet] = []
    weights: list[np.ndarray] = []

    def name_of(part: object) -> object:
        return part if isinstance(part, str) else id(part)

    for embed, used in asked:
        distinct = {name_of(part): part for _, part, _ in used}
        if used:
            places = {name: place for place, name in enumerate(distinct)}
            columns = np.zeros((len(queries), len(distinct)), np.float32)
            for row, part, weight in used:
                columns[row, places[name_of(part)]] += np.float32(weight)
            parts.append(embed([*distinct.values()]))
            weights.append(columns)
    joined = EmbeddedQueries(ArraySet.concatenate(parts), np.concatenate(weights, axis=1))
    return joined.some(np.arange(len(queries)))
