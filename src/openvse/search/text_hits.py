"""Items by the words that were read in them.

A long text has any word of a sentence somewhere. So of a text only the run of lines with most of the sentence counts,
as if it were all of the text. Words that no text has count as rare ones that the text lacks: a sign is no reason to
prefer its photograph for a sentence with one of its words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from openvse.indexing.database import Forms
from openvse.indexing.words import line_of
from openvse.media.text_reading import TextLine
from openvse.search.rank_fusion import WordHits

REACH = 60
"""The number of words of a run of lines, as on a receipt or a screen."""

LOOKED_AT = 500
"""The largest number of texts that are searched for runs of lines. For the others the rarest word counts."""

_SHOWN = 3  # lines of a hit

ReadText: TypeAlias = tuple[list[TextLine], str]
"""The lines of an item, and their words, a line each."""


def beside_each_other(hits: WordHits, texts: Mapping[int, str], forms: Forms) -> WordHits:
    """Return the hits with the shares of the best run of lines of each text, whose words are given by position."""
    weights, shares = np.array(hits.weights), hits.shares.copy()
    wanted = [[line_of(parts) for parts in forms[word]] for word in hits.words]
    for row, position in enumerate(hits.positions.tolist()):
        held = [bit for bit in range(len(weights)) if int(hits.bits[row]) >> bit & 1]
        if (text := texts.get(position)) is None:
            shares[row] = weights[held].max()
        elif len(held) > 1 and text.count(" ") > REACH:
            shares[row] = round(max(_shares_of_runs(text.split("\n"), wanted, weights)), 6)
    order = np.lexsort((hits.positions, -shares))
    return replace(hits, positions=hits.positions[order], shares=shares[order], bits=hits.bits[order])


def _shares_of_runs(lines: Sequence[str], wanted: Sequence[Sequence[str]], weights: np.ndarray) -> list[float]:
    """Return the share of each run of lines: as many as have ``REACH`` words, and at least one."""
    held = np.array([[any(form in line for form in forms) for forms in wanted] for line in lines])
    lengths = [max(1, line.count(" ") - 1) for line in lines]
    shares, first, length = [], 0, 0
    for last, more in enumerate(lengths):
        length += more
        while first < last and length > REACH:
            length -= lengths[first]
            first += 1
        shares.append(float(weights[held[first : last + 1].any(axis=0)].sum()))
    return shares


def joined_words(named: WordHits, read: WordHits) -> WordHits:
    """Return the items with words in their names and metadata, or in their texts, each with the better share."""
    words = tuple(dict.fromkeys((*named.words, *read.words)))
    positions = np.union1d(named.positions, read.positions)
    shares, bits = np.zeros(len(positions)), np.zeros(len(positions), np.uint64)
    for hits in (named, read):
        places = np.searchsorted(positions, hits.positions)
        shares[places] = np.maximum(shares[places], hits.shares)
        for bit, word in enumerate(hits.words):
            bits[places] |= (hits.bits >> np.uint64(bit) & np.uint64(1)) << np.uint64(words.index(word))
    order = np.argsort(-shares, kind="stable")
    return WordHits(positions[order], shares[order], words, bits[order])


def lines_with(text: ReadText, matched: Sequence[str], forms: Forms) -> tuple[TextLine, ...]:
    """Return the lines of a text that have words, with the best lines first, no more than a hit shows."""
    wanted = [[line_of(parts) for parts in forms.get(word, ())] for word in matched]
    having = [sum(any(form in line for form in each) for each in wanted) for line in text[1].split("\n")]
    places = sorted((place for place, count in enumerate(having) if count), key=lambda place: -having[place])
    return tuple(text[0][place] for place in places[:_SHOWN])
