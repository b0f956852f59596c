"""Visual similarity and words together: items with words of a sentence, joined with visually similar ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from openvse.indexing.index import places_among

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
