"""The exact search: queries as embeddings, and every item scored, block by block over the memory map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from openvse.errors import IndexFormatError, ModelError
from openvse.indexing.conditions import Condition
from openvse.indexing.index import places_among
from openvse.indexing.vector_files import MappedVectors
from openvse.media.videos import ClipSource
from openvse.runtime.arrays import ArraySet, Kind, directions, score_sets
from openvse.search.provided import COMPARISON
from openvse.search.query import Query
from openvse.stores.int8 import MARGIN, inner_products, largest, pack, promising, unpack

RRF_K = 60
"""The constant of reciprocal rank fusion (Cormack et al., SIGIR 2009). A larger one separates first ranks less."""

WEIGHT = 1.0
"""The weight of an item with all words of a sentence. An item by its visual similarity has weight 1."""

POWER = 3
"""The exponent by which the weight falls with the share of the sentence that an item has."""

DEPTH = 100
"""The number of first items by visual similarity that raise items with words, so that any page has the same order."""

MOST = 4096
"""The largest number of items that are found by their words."""


_TIE, _OTHER = 1e-12, 1e-8  # common words only order equal sums, and other forms of words only equal shares

Found: TypeAlias = Mapping[str, Int[np.ndarray, "_"]]
"""The positions of the items that have each word."""

SAME = 0.98
"""The lowest cosine of two near duplicates. With several embeddings, the two most similar count."""

_ROUNDING = 1e-6


def unit_vectors(vectors: Float[np.ndarray, "n K D"], *, are_gaussians: bool) -> Float[np.ndarray, "n K d"]:
    """Return the directions of embeddings, with unit length."""
    some: Any = directions(vectors.astype(np.float32), are_gaussians=are_gaussians)
    return np.asarray(some / np.maximum(np.linalg.norm(some, axis=-1, keepdims=True), 1e-12))


def are_same(
    some: Float[np.ndarray, "n K d"], others: Float[np.ndarray, "m K d"], least: float = SAME
) -> Bool[np.ndarray, "n m"]:
    """Return which unit vectors of two sets are nearly the same."""
    width = some.shape[-1]
    products = some.reshape(-1, width) @ others.reshape(-1, width).T
    shape = len(some), some.shape[1], len(others), others.shape[1]
    near: np.ndarray = products.reshape(shape).max(axis=(1, 3)) >= least - _ROUNDING
    return near


def first_of_scenes(vectors: Float[np.ndarray, "n K d"], most: int) -> Int[np.ndarray, "_"]:
    """Return the places of the first ``most`` items that are not nearly the same as one of these before them.

    So no chain joins items that do not resemble each other, and more items change nothing for the earlier ones.
    """
    firsts, heads = list[int](), np.empty_like(vectors[:most])
    for place, one in enumerate(vectors):
        if not are_same(one[None], heads[: len(firsts)]).any():
            heads[len(firsts)] = one
            firsts.append(place)
            if len(firsts) == most:
                break
    return np.array(firsts, np.int64)


@dataclass(frozen=True)
class WordHits:
    """Items with words of a sentence, the best first, and equal ones by position.

    A share is the part of the sentence that an item has, where a word weighs the more the fewer items have it (inverse
    document frequency). The lowest of its bits is for the first word. Weights are the words' additions to a share.
    Forms are the parts of words that represent each word, if texts were searched. ``whole`` is the number of items that
    have all words. ``ties`` is how many common words an item has that were left out.
    """

    positions: Int[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0, np.int64))
    shares: Float[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0))
    words: tuple[str, ...] = ()
    bits: UInt64[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0, np.uint64))
    weights: tuple[float, ...] = ()
    forms: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    whole: int = 0
    ties: Int[np.ndarray, "_"] = field(default_factory=lambda: np.zeros(1, np.int64))

    @classmethod
    def of(cls, items: Found, searched: int, size: int, missing: float = 0.0, inexact: Found = {}) -> WordHits:  # noqa: B006
        """Return the items, given those that have each of at most 64 words, or nothing but another form of it.

        The rest of the sentence has the weight ``missing``.
        """
        bits = np.zeros(size, np.min_scalar_type((1 << len(items)) - 1))
        rarity = [math.log1p(searched / len(positions)) for positions in items.values()]
        whole = sum(rarity) + missing
        for bit, positions in enumerate(items.values()):
            bits[positions] |= bits.dtype.type(1 << bit)
        hits = np.flatnonzero(bits)
        held, shares = bits[hits].astype(np.uint64), np.zeros(len(hits))
        for bit, value in enumerate(rarity):
            shares += value / whole * (held >> np.uint64(bit) & np.uint64(1))
        shares = np.round(shares, 6)
        for positions in inexact.values():
            shares[np.isin(hits, positions)] -= _OTHER
        if len(hits) > MOST:
            lowest = np.partition(shares, len(hits) - MOST)[len(hits) - MOST]
            better, equal = np.flatnonzero(shares > lowest), np.flatnonzero(shares == lowest)
            chosen = np.concatenate([better, equal[: MOST - len(better)]])
            hits, held, shares = hits[chosen], held[chosen], shares[chosen]
        order = np.argsort(-shares, kind="stable")
        return cls(hits[order], shares[order], (*items,), held[order], tuple(value / whole for value in rarity))

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, positions: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """Return the row of each of some items, or -1 for one without words."""
        by_position = np.argsort(self.positions)
        places, held = places_among(self.positions[by_position], positions)
        return np.where(held, by_position[np.where(held, places, 0)], -1) if len(self) else np.full(len(positions), -1)

    def sums(self) -> Float[np.ndarray, "n"]:
        """Return the words' addition to each item. Items with the same share have the same rank."""
        ranks = np.searchsorted(-self.shares, -self.shares) + 1
        sums: np.ndarray = WEIGHT * np.round(self.shares, 6) ** POWER / (RRF_K + ranks) + _TIE * self.ties
        return sums

    def among(self, rows: Int[np.ndarray, "n"], searched: int) -> Int[np.ndarray, "n"]:
        """Return the number of items with the words of each row. A row of -1 has none, as all that are searched."""
        held = np.where(rows >= 0, self.bits[np.maximum(rows, 0)] if len(self) else 0, 0).astype(np.uint64)
        counts = {each: int((self.bits & each == each).sum()) for each in np.unique(held) if each}
        return np.array([counts.get(each, searched) for each in held], np.int64)

    def matched(self, row: int) -> tuple[str, ...]:
        """Return the words that an item has."""
        bits = int(self.bits[row])
        return tuple(word for bit, word in enumerate(self.words) if bits >> bit & 1)


@dataclass(frozen=True)
class Ranking:
    """The best items of a query, best first, with their scores by visual similarity.

    ``rows`` are their rows among the items with words, and ``places`` their places by visual similarity alone, or -1.
    """

    positions: Int[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"]
    rows: Int[np.ndarray, "n"]
    places: Int[np.ndarray, "n"]

    @classmethod
    def by_similarity(cls, scores: Float[np.ndarray, "n"], positions: Int[np.ndarray, "n"]) -> Ranking:
        """Return the items in the order of their visual similarity."""
        return cls(positions, scores, np.full(len(scores), -1), np.arange(len(scores)))

    def __len__(self) -> int:
        return len(self.positions)

    def some(self, chosen: Int[np.ndarray, "m"] | Bool[np.ndarray, "n"]) -> Ranking:
        """Return some of the items."""
        return Ranking(self.positions[chosen], self.scores[chosen], self.rows[chosen], self.places[chosen])

    def then(self, other: Ranking) -> Ranking:
        """Return the items, and those of another ranking behind them."""
        return Ranking(
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.places, other.places]),
        )


ScoreBest: TypeAlias = Callable[[Int[np.ndarray, "n"], int], tuple[Float[np.ndarray, "k"], Int[np.ndarray, "k"]]]
"""Returns the scores of the best so many of some items, given by their positions, and the places of these."""


def joined(words: WordHits, similar: Ranking, best: ScoreBest, count: int | None = None) -> Ranking:
    """Join two rankings by the sum of ``1 / (RRF_K + rank)``, with words times ``WEIGHT`` and their share cubed.

    At equal sums, items with words come first, and then the better score. At least ``DEPTH`` items by visual similarity
    are needed. ``best`` scores the others.
    """
    rows = words.rows(similar.positions)
    held = rows >= 0
    others = np.setdiff1d(np.arange(len(words)), rows)
    ranks = np.arange(1, len(similar) + 1)
    sums = np.concatenate([np.where(held & (ranks > DEPTH), 0, 1 / (RRF_K + ranks)), np.zeros(len(others))])
    unscored = Ranking(words.positions[others], np.zeros(len(others), np.float32), others, np.full(len(others), -1))
    every = Ranking(similar.positions, similar.scores, rows, similar.places).then(unscored)
    has = every.rows >= 0
    sums[has] += words.sums()[every.rows[has]]
    lowest = -np.inf
    if count is not None and len(sums) > count:  # only what may be among the first is scored
        lowest = np.partition(sums, len(sums) - count)[len(sums) - count]
        near = sums >= lowest
        every, sums, has = every.some(near), sums[near], has[near]
    is_kept = every.places >= 0
    # Many items may have the last sum that is wanted, as all that have a single word do: the best of these are enough.
    for some in (np.flatnonzero(~is_kept & (sums > lowest)), np.flatnonzero(~is_kept & (sums == lowest))):
        if len(some):
            scores, chosen = best(every.positions[some], len(some) if count is None else count)
            every.scores[some[chosen]], is_kept[some[chosen]] = scores, True
    every, sums, has = every.some(is_kept), sums[is_kept], has[is_kept]
    return every.some(np.lexsort((every.positions, -every.scores, ~has, -sums))[:count])


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

    def __call__(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Scores:
        """Score all pairs in the precision of the items."""


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
