"""Published test protocols as data: which part of which data set, in how many folds, with which metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from openvse.corpus import Corpus
from openvse.corpus.corpus import merge_identical
from openvse.errors import DataError, choices, nearest
from openvse.evaluation.ensemble import Member
from openvse.registry import Registry, installed, load_part
from openvse.specs.load import parse_yaml

if TYPE_CHECKING:
    from openvse.output.documents import Document


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
        size = " and ".join(f"{count:,}" for count, want in ((items, self.items), (texts, self.texts)) if want)
        return f"protocol {self.name} has {wanted} items, and {size} are evaluated: the figures are not of it"


Judge: TypeAlias = Callable[[Path, Corpus, Member, str, Sequence[str]], "Document"]
"""A function that measures embedded items against judgements of single pairs.

Its arguments are the folder of the data, the items, their embeddings, the fingerprint of the model, and lines that the
report says first.
"""

JUDGES: Registry[Judge] = Registry("judge", {})
"""For each protocol with ``annotations``, what reads them, from a folder and the name of a split."""


@cache
def protocols() -> Mapping[str, TestProtocol]:
    """Return all protocols by name. An installed package adds a mapping of some as ``protocols.NAME``."""
    return {
        name: each
        for entry in installed("protocols").values()
        for name, each in dict[str, TestProtocol](load_part(entry)).items()
    }


def read_protocols(text: str) -> dict[str, TestProtocol]:
    """Return the protocols of a text in YAML, with the fields of each by its name."""
    return {name: TestProtocol(name, **keys) for name, keys in parse_yaml(text).items()}


def protocols_of(corpus: Corpus) -> tuple[str, ...]:
    """Return the names of the protocols that a part of a data set fits."""
    return tuple(name for name, protocol in protocols().items() if protocol.fits(corpus))


def protocol_named(name: str) -> TestProtocol:
    """Return a protocol. Raise DataError, with the nearest name, if no protocol has this name."""
    known = [*protocols()]
    if name not in known:
        raise DataError(f"unknown protocol {name!r}{nearest(name, known)}{choices(known, 'openvse list protocols')}")
    return protocols()[name]
