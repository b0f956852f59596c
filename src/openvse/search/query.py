"""Queries of several parts: a sentence, an image, an item of the index, and what to avoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError
from openvse.media.videos import ClipSource

if TYPE_CHECKING:
    from openvse.types import EmbeddingSet

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Query:
    """What to look for; the score of an item is the weighted mean of the scores of the parts that are given.

    What is to be avoided is subtracted: ``avoid_weight`` times the score of each of its terms. For a model with one
    embedding an item and the cosine, that is a search with the weighted sum of the embeddings.

    Attributes:
        text: a sentence; "" for none.
        image: an image; None for none.
        like: the id of an item of the index, whose stored embeddings are taken; it is not among its own hits.
        avoid: sentences that the items should not fit.
        image_weight: weight of the image, and of the item, beside a text; the text has 1 minus that. Between 0 and 1.
        avoid_weight: see above; 0 and more.

    Raises:
        DataError: nothing is looked for, or a weight is outside its range.
    """

    text: str = ""
    image: ClipSource | None = None
    like: str | None = None
    avoid: tuple[str, ...] = ()
    image_weight: float = 0.5
    avoid_weight: float = 0.5

    def __post_init__(self) -> None:
        if not self.text.strip() and self.image is None and self.like is None:
            raise DataError(
                "a query looks for nothing: give a sentence, an image, or an item that is like it"
            )
        if not 0 <= self.image_weight <= 1 or not 0 <= self.avoid_weight < math.inf:
            raise DataError(
                f"image_weight is {self.image_weight} and avoid_weight {self.avoid_weight}: allowed are 0 to 1, and 0 "
                f"and more"
            )

    @property
    def is_sentence(self) -> bool:
        """Whether it is a sentence and nothing else, whose scores are those of the model."""
        return self.image is None and self.like is None and not any(term.strip() for term in self.avoid)

    def weights(self) -> tuple[float, float, float]:
        """Return the weights of text, image and item; they add up to 1."""
        seen = [self.image is not None, self.like is not None]
        share = self.image_weight if self.text.strip() else 1.0
        each = share / max(1, sum(seen))
        return (1 - share if any(seen) else 1.0) if self.text.strip() else 0.0, each * seen[0], each * seen[1]


@dataclass(frozen=True)
class EmbeddedQueries:
    """The embeddings of the parts of some queries.

    Attributes:
        parts: every part once.
        weights: of each part for each query; None where every query is one part with weight 1.
    """

    parts: EmbeddingSet
    weights: Float[np.ndarray, "Q P"] | None


def embed_queries(
    queries: Sequence[Query],
    texts: Callable[[Sequence[str]], EmbeddingSet],
    images: Callable[[Sequence[ClipSource]], EmbeddingSet],
    items: Callable[[Sequence[str]], EmbeddingSet],
) -> EmbeddedQueries:
    """Embed every part of some queries once, each kind together.

    Args:
        queries: at least one.
        texts: embeds sentences.
        images: embeds images.
        items: returns the embeddings of items by their ids.
    """
    used: tuple[
        list[tuple[int, str, float]], list[tuple[int, ClipSource, float]], list[tuple[int, str, float]]
    ]
    used = [], [], []
    for number, query in enumerate(queries):
        of_text, of_image, of_item = query.weights()
        if query.text.strip():
            used[0].append((number, query.text, of_text))
        used[0].extend((number, term, -query.avoid_weight) for term in query.avoid if term.strip())
        if query.image is not None:
            used[1].append((number, query.image, of_image))
        if query.like is not None:
            used[2].append((number, query.like, of_item))
    parts: list[EmbeddingSet] = []
    columns: list[tuple[int, int, float]] = []
    _add(used[0], texts, parts, columns)
    _add(used[1], images, parts, columns)
    _add(used[2], items, parts, columns)
    weights = np.zeros((len(queries), sum(len(part) for part in parts)), np.float32)
    for row, column, weight in columns:
        weights[row, column] += np.float32(weight)
    is_simple = len(columns) == len(queries) == weights.shape[1] and bool((weights.sum(axis=1) == 1).all())
    joined = type(parts[0]).concatenate(parts)
    if not is_simple:
        return EmbeddedQueries(joined, weights)
    rows = weights.argmax(axis=1).tolist()
    if rows == sorted(rows):
        return EmbeddedQueries(joined, None)
    return EmbeddedQueries(type(joined).concatenate([joined[row : row + 1] for row in rows]), None)


def _add(
    used: Sequence[tuple[int, PartT, float]],
    embed: Callable[[Sequence[PartT]], EmbeddingSet],
    parts: list[EmbeddingSet],
    columns: list[tuple[int, int, float]],
) -> None:
    """Embed the parts of one kind, and note which column of the weights each of them is."""
    if not used:
        return
    distinct: list[PartT] = []
    for _, part, _ in used:
        if not any(part is other or (isinstance(part, str) and part == other) for other in distinct):
            distinct.append(part)
    first = sum(len(part) for part in parts)
    parts.append(embed(distinct))
    for row, part, weight in used:
        place = next(
            place
            for place, other in enumerate(distinct)
            if part is other or (isinstance(part, str) and part == other)
        )
        columns.append((row, first + place, weight))
