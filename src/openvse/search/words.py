"""Words and looks together: the items that have words of a sentence, joined with those that look like it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

K = 60
"""The constant of reciprocal rank fusion (Cormack et al., SIGIR 2009): how little the first ranks differ."""

WEIGHT = 1.0
"""The weight of an item with all words of a sentence; that of an item by its looks is 1."""

POWER = 3
"""How fast the weight falls with the share of the sentence that an item has."""

DEPTH = 100
"""How many of the first items by looks raise those with words, so that the order is the same for any page."""

COMMON = 0.1
"""Words that more than this share of the items have, and more than ``FEW``, are not looked up."""

FEW = 10

MOST = 4096
"""The largest number of items that are found by their words."""


@dataclass(frozen=True)
class WordHits:
    """Items with words of a sentence, the best first.

    Attributes:
        shares: how much of the sentence each item has by its id: the share of its words, each weighted by how few items
            have it (inverse document frequency), of those that an item has.
        matched: these words.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    matched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Mapping[str, Sequence[str]], count: int) -> WordHits:
        """Return the items of an index of ``count`` items, given the ids of those that have each word."""
        matched: dict[str, tuple[str, ...]] = defaultdict(tuple)
        shares: dict[str, float] = defaultdict(float)
        rarity = {word: math.log1p(count / len(ids)) for word, ids in items.items() if ids}
        whole = sum(rarity.values())
        for word, value in rarity.items():
            for item_id in items[word]:
                matched[item_id] += (word,)
                shares[item_id] += value / whole
        best = sorted(shares, key=lambda each: (-round(shares[each], 6), each))[:MOST]
        return cls({each: round(shares[each], 6) for each in best}, {each: matched[each] for each in best})

    def sums(self, weight: float) -> dict[str, float]:
        """Return what words add to each item; items with the same share have the same rank."""
        sums: dict[str, float] = {}
        before, rank = 0.0, 0
        for place, (item_id, share) in enumerate(self.shares.items(), start=1):
            if share != before:
                before, rank = share, place
            sums[item_id] = weight * share**POWER / (K + rank)
        return sums


def joined(
    words: WordHits, looks: Sequence[str], scores: Mapping[str, float], weight: float = WEIGHT
) -> list[str]:
    """Join two rankings by the sum of ``1 / (K + rank)``, that of words times a weight and its share cubed.

    Of equal sums, items with words come first, and then those with the better score by looks.

    Args:
        looks: the ids of the items by their looks, the best first; at least ``DEPTH`` where there are so many.
        scores: the score by looks of each of these items.
        weight: of the ranking by words.
    """
    sums = {
        item_id: 1 / (K + rank)
        for rank, item_id in enumerate(looks, start=1)
        if rank <= DEPTH or item_id not in words.shares
    }
    for item_id, more in words.sums(weight).items():
        sums[item_id] = sums.get(item_id, 0.0) + more
    return sorted(sums, key=lambda each: (-sums[each], each not in words.shares, -scores[each], each))
