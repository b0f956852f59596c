"""The exact search: queries as embeddings, and every item scored, block by block over the memory map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.errors import IndexFormatError, ModelError
from openvse.indexing.conditions import Condition
from openvse.indexing.vector_files import MappedVectors
from openvse.media.videos import ClipSource
from openvse.runtime.arrays import ArraySet, Kind, score_sets
from openvse.search.provided import COMPARISON
from openvse.search.query import Query
from openvse.stores.ranking import MARGIN, inner_products, largest, pack, promising, unpack

Scores = Float[np.ndarray, "n Q"]


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
    return EmbeddedQueries(ArraySet.concatenate(parts), np.concatenate(weights, axis=1)).some(np.arange(len(queries)))


@dataclass(frozen=True)
class ArrayComparison:
    """The comparison of an exported model, in NumPy, swapped if items are sentences, which are texts to the model."""

    kind: Kind = "inner"
    swapped: bool = False

    @property
    def is_inner(self) -> bool:
        """Whether the score is the largest inner product of two embeddings and nothing else."""
        return self.kind != "order"

    def __call__(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Scores:
        """Score all pairs in the precision of the items."""
        held, asked = ArraySet.full(items), ArraySet(queries.vectors.astype(items.dtype), queries.mask)
        return score_sets(asked, held, self.kind).T if self.swapped else score_sets(held, asked, self.kind)


@runtime_checkable
class ItemComparison(Protocol):
    """A model's comparison of items with queries."""

    @property
    def is_inner(self) -> bool:
        """Whether the score is the largest inner product of two embeddings and nothing else."""
        ...

    def __call__(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Scores:
        """Score all pairs in the precision of the items."""
        ...


def comparison_of(model: Any, holds: str) -> ItemComparison:
    """Return a model's comparison of items, images or sentences, with queries."""
    kind = getattr(model, "kind", None)  # of an exported model
    swapped = holds == "sentences"
    return COMPARISON.get()(model, swapped) if kind is None else ArrayComparison(kind, swapped)


@dataclass(frozen=True)
class _Block:
    """Some rows of a file, the rows of items that may be found, and their positions."""

    vectors: Float[np.ndarray, "m K D"]
    positions: Int[np.ndarray, "n"]
    chosen: Int[np.ndarray, "n"] | None

    def rows(self, places: Int[np.ndarray, "p"]) -> Float[np.ndarray, "p K D"]:
        """Return the embeddings of some of the items that may be found."""
        rows: np.ndarray = self.vectors[places if self.chosen is None else self.chosen[places]]
        return rows


class ExactSearch:
    """Scores every item and returns the best.

    Items are ordered by score, then by position. Possible best items of a block are scored once more in double
    precision and rounded to single. So neither the order nor a score depends on the blocks, or on other queries.

    Args:
        vectors: embeddings of the items, ``[count, K, D]``, in memory or mapped, or the files of an index.
        compare: the model's comparison of items with queries.
        names: the names of the items in messages. Default: positions.
        block_values: numbers of a block, of copied embeddings and of scores. It bounds the memory.
    """

    name = "exact"

    def __init__(
        self,
        vectors: Float[np.ndarray, "count K D"] | Sequence[MappedVectors],
        compare: ItemComparison | None = None,
        *,
        names: Sequence[str] = (),
        block_values: int = 1 << 22,
    ) -> None:
        if isinstance(vectors, np.ndarray):
            vectors = [MappedVectors(vectors, np.arange(len(vectors), dtype=np.int32))]
        self._files = vectors
        self._is_full = [bool((file.positions >= 0).all()) for file in vectors]
        self._compare: ItemComparison = ArrayComparison() if compare is None else compare
        self._block_values, self._names = block_values, names
        self.is_inner = self._compare.is_inner

    def search(
        self,
        queries: EmbeddedQueries,
        top_k: int,
        *,
        allowed: Bool[np.ndarray, "count"] | None = None,
        where: Sequence[Condition] = (),
        less: Float[np.ndarray, "count"] | None = None,
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """Return scores, best first, and positions of the best ``top_k`` allowed items, equal scores by position.

        A store understands the conditions themselves, for which ``allowed`` stands here. ``less`` is subtracted from
        the scores of each item. An embedding with NaN or infinite numbers is an error.
        """
        if not len(queries):
            return np.empty((0, 0), np.float32), np.empty((0, 0), np.int64)
        mapped, copied, parts = self._plan(queries)
        best = [np.empty((len(part), 0), np.int64) for part in parts]
        for block in self._blocks(mapped, copied, allowed):
            for number, part in enumerate(parts):
                best[number] = self._improved(best[number], block, part, top_k, less)
        return unpack(np.concatenate(best))

    def close(self) -> None:
        """Do nothing: the index keeps its files."""

    def score(self, queries: EmbeddedQueries, vectors: Float[np.ndarray, "n K D"]) -> Float[np.ndarray, "Q n"]:
        """Return the exact scores of some items, which do not depend on other scored items."""
        return self._exact(vectors, queries)

    def _plan(self, queries: EmbeddedQueries) -> tuple[int, int, list[EmbeddedQueries]]:
        """Return the number of items in a block that is read in place, and in a copied one, and queries in batches."""
        num_embeddings, dim = self._files[0].vectors.shape[1:] if self._files else (1, 1)
        parts, is_simple = queries.parts, queries.weights is None
        # At least 256 items a block: queries are taken together as long as their scores fit.
        products = num_embeddings * parts.mask.shape[1]
        together = max(1, self._block_values // (256 * products)) if is_simple else len(parts)
        of_scores = products * min(together, len(parts))
        copied = max(1, self._block_values // max(num_embeddings * dim, of_scores))
        mapped = max(1, self._block_values // of_scores) if self.is_inner else copied
        if not is_simple:
            return mapped, copied, [queries]
        starts = range(0, len(parts), together)
        return mapped, copied, [EmbeddedQueries(parts[start : start + together], None) for start in starts]

    def _blocks(self, mapped: int, copied: int, allowed: Bool[np.ndarray, "count"] | None) -> Iterator[_Block]:
        """Yield the rows that may be found, some at a time."""
        for file, is_full in zip(self._files, self._is_full, strict=True):
            if is_full and allowed is None:
                for start in range(0, len(file.vectors), mapped):
                    some = slice(start, start + mapped)
                    yield _Block(file.vectors[some], file.positions[some], None)
                continue
            usable = file.positions >= 0
            if allowed is not None:
                usable &= allowed[file.positions]
            rows = np.flatnonzero(usable)
            if 2 * len(rows) < len(usable):  # few: only these are read
                for start in range(0, len(rows), copied):
                    few = rows[start : start + copied]
                    yield _Block(file.vectors[few], file.positions[few], None)
                continue
            for start in range(0, len(usable), mapped):
                first, last = np.searchsorted(rows, [start, start + mapped])
                if first < last:
                    here = rows[first:last]
                    some = slice(start, start + mapped)
                    yield _Block(file.vectors[some], file.positions[here], here - start)

    def _improved(
        self,
        best: Int[np.ndarray, "Q j"],
        block: _Block,
        part: EmbeddedQueries,
        top_k: int,
        less: Float[np.ndarray, "count"] | None,
    ) -> Int[np.ndarray, "Q k"]:
        """Return the best items of a block and of the blocks before it."""
        scores, margin = self._scores(block, part)
        lowest, highest = float(scores.min()), float(scores.max())
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            self._refuse(block)
        margin *= max(1.0, highest, -lowest) * part.scale
        if less is not None:
            scores = scores - less[block.positions, np.newaxis]
        floor = np.full(len(part), -np.inf, np.float32)
        if best.shape[1] == top_k:
            floor = unpack(best[:, -1:])[0][:, 0]
        places = promising(scores, floor - np.float32(margin), margin, top_k)
        if not len(places):
            return best
        exact, positions = self._exact(block.rows(places), part), block.positions[places]
        exact = exact if less is None else exact - less[positions]
        return largest(np.concatenate([best, largest(pack(exact, positions.astype(np.int64)), top_k)], axis=1), top_k)

    def _scores(self, block: _Block, part: EmbeddedQueries) -> tuple[Scores, float]:
        """Return scores as the processor computes them, and a bound of their error."""
        margin, vectors = MARGIN, block.vectors
        if self.is_inner:
            products, margin = inner_products(vectors.reshape(-1, vectors.shape[2]), part.flat)
            sets = *vectors.shape[:2], *part.parts.mask.shape
            if sets[1] * sets[3] > 1:
                products = products.reshape(sets).max(axis=(1, 3))
            scores = part.weighted(products)
        else:
            scores = part.weighted(self._compare(np.asarray(vectors, np.float32), part.parts))
        return (scores if block.chosen is None else scores[block.chosen]), margin

    def _exact(self, vectors: Float[np.ndarray, "n K D"], part: EmbeddedQueries) -> Float[np.ndarray, "Q n"]:
        """Return scores that do not depend on other scored items."""
        scores = self._compare(vectors.astype(np.float64), part.parts)
        return part.weighted(scores.astype(np.float64)).T.astype(np.float32)

    def _refuse(self, block: _Block) -> NoReturn:
        """Raise an error with the cause of a score that is not finite: it would rank first."""
        bad = np.flatnonzero(~np.isfinite(block.rows(np.arange(len(block.positions)))).all(axis=(1, 2)))
        if not len(bad):
            raise ModelError("a score is NaN or infinite: check the query and the model's weights")
        position = int(block.positions[bad[0]])
        name = self._names[position] if self._names else f"item {position}"
        raise IndexFormatError(f"the embedding of {name} holds NaN or infinite numbers: run 'openvse index' again")
