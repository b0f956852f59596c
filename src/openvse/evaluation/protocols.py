"""Published test protocols as data: which part of which data set, in how many folds, with which metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import numpy as np

from openvse.corpus import Corpus
from openvse.corpus.corpus import merge_identical
from openvse.errors import DataError, choices, nearest
from openvse.specs.load import parse_yaml


@dataclass(frozen=True)
class TestProtocol:
    """A protocol under which figures are published.

    ``items`` is 0 where the number of images, clips or questions is not fixed. The metrics of the ``folds``, runs of
    consecutive images, are averaged. With ``every``, all relevant items are placed (mAP@R and the like). ``pool``
    selects the sentences: all, the first five of each image, the last of each clip, or all, equal ones ``merged``.
    """

    __test__ = False  # pytest takes the name for a test

    name: str
    data: str
    title: str
    items: int
    texts: int = 0
    split: str = "test"
    folds: int = 1
    task: str = "retrieval"
    annotations: str = ""
    every: bool = False
    pool: Literal["all", "first_five", "last", "merged"] = "all"
    code: str = ""

    def pooled(self, corpus: Corpus) -> Corpus:
        """Return a corpus with the sentences that count, or the corpus itself if these are all of its texts."""
        if self.pool == "all":
            return corpus
        if self.pool == "merged":
            return merge_identical(corpus, key=str)
        images, most, step = corpus.relevance.images, *((5, 1) if self.pool == "first_five" else (1, -1))
        seen = Counter[int]()
        pooled = np.zeros(len(images), dtype=bool)
        for place in range(len(images))[::step]:
            pooled[place] = seen[images[place]] < most
            seen[images[place]] += 1
        return corpus if pooled.all() else corpus.with_pairs(pooled)

    def fits(self, corpus: Corpus) -> bool:
        """Return whether a part of a data set has the protocol's items, and only sentences that count."""
        return len(corpus) == self.items and self.pooled(corpus) is corpus

    def mismatch(self, items: int, texts: int) -> str:
        """Return a line if the number of evaluated items differs from the protocol's, or ""."""
        if self.items in (0, items) and self.texts in (0, texts):
            return ""
        wanted = " and ".join(f"{count:,}" for count in (self.items, self.texts) if count)
        size = " and ".join(
            f"{count:,}" for count, want in ((items, self.items), (texts, self.texts)) if want
        )
        return f"protocol {self.name} has {wanted} items, and {size} are evaluated: the figures are not of it"


_LISTED = files("openvse.evaluation").joinpath("protocols.yaml")

PROTOCOLS = {
    name: TestProtocol(name, **keys) for name, keys in parse_yaml(_LISTED.read_text(encoding="utf-8")).items()
}
"""All protocols by name."""


def protocols_of(corpus: Corpus) -> tuple[str, ...]:
    """Return the names of the protocols that a part of a data set fits."""
    return tuple(name for name, protocol in PROTOCOLS.items() if protocol.fits(corpus))


def protocol_named(name: str) -> TestProtocol:
    """Return a protocol. Raise DataError, with the nearest name, if no protocol has this name."""
    if name not in PROTOCOLS:
        known = [*PROTOCOLS]
        raise DataError(
            f"unknown protocol {name!r}{nearest(name, known)}{choices(known, 'openvse list protocols')}"
        )
    return PROTOCOLS[name]
