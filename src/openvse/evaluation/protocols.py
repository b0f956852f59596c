"""Published test protocols as data: which part of which data set, in how many folds, with which metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from openvse.corpus import Corpus, merge_identical
from openvse.errors import DataError, choices, nearest


@dataclass(frozen=True)
class TestProtocol:
    """A protocol under which figures are published.

    Attributes:
        name: its name on the command line.
        data: the name of the data set that it is on.
        title: what is measured, in a line.
        items: the number of images, clips or questions of the part; 0 if it is not fixed.
        texts: the number of sentences of the part; 0 if it is not fixed.
        split: the part.
        folds: into how many runs of consecutive images the part is cut; their metrics are averaged.
        task: the task of the models.
        annotations: the further files that it needs, or "".
        every: whether all relevant items are placed (mAP@R and the like).
        pool: the sentences that count: all; the first five of each image; the last of each clip; or all, with equal
            ones ``merged`` into one text that belongs to all their clips.
        code: the repository and file whose evaluation defines it, "" if none is known.
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
        """Return a corpus with the sentences that count; the corpus itself if these are all of its texts."""
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
        """Return whether a part of a data set has the protocol's items, and no sentences but those that count."""
        return len(corpus) == self.items and self.pooled(corpus) is corpus

    def mismatch(self, items: int, texts: int) -> str:
        """Return a line if another number of items is evaluated than the protocol has, or ""."""
        if self.items in (0, items) and self.texts in (0, texts):
            return ""
        wanted = " and ".join(f"{count:,}" for count in (self.items, self.texts) if count)
        size = " and ".join(
            f"{count:,}" for count, want in ((items, self.items), (texts, self.texts)) if want
        )
        return f"protocol {self.name} has {wanted} items, and {size} are evaluated: the figures are not of it"


_HGR = "cshizhe/hgr_v2t, t2vretrieval/readers/mpdata.py"
_PVSE = "yalesong/pvse, data.py and eval.py"
_INFINITY = "woodfrog/vse_infty, lib/evaluation.py"
_RATINGS = "the folder of its CSV files (sits_test.csv, ...)"

_ALL = (
    TestProtocol("flickr8k", "flickr8k", "1,000 test images of Flickr8k, five sentences each", 1000, 5000),
    TestProtocol(
        "flickr30k_1k",
        "flickr30k",
        "Flickr30K 1K: Karpathy's test images, five sentences each",
        1000,
        5000,
        code=_INFINITY,
    ),
    TestProtocol(
        "coco_5k",
        "coco",
        "COCO 5K: Karpathy's test images, the first five sentences of each",
        5000,
        25_000,
        pool="first_five",
        code=_INFINITY,
    ),
    TestProtocol(
        "coco_1k",
        "coco",
        "COCO 1K: the mean of five folds of 1,000 test images of COCO 5K",
        5000,
        25_000,
        folds=5,
        pool="first_five",
        code=_INFINITY,
    ),
    TestProtocol("coco_5k_all", "coco", "COCO 5K with all 25,010 sentences", 5000, 25_010),
    TestProtocol("coco_1k_all", "coco", "COCO 1K with all 25,010 sentences", 5000, 25_010, folds=5),
    TestProtocol(
        "msr_vtt",
        "msr_vtt",
        "MSR-VTT: 2,990 test clips; equal sentences are one text",
        2990,
        pool="merged",
        code=_HGR,
    ),
    TestProtocol("msr_vtt_all", "msr_vtt", "MSR-VTT with each of the 59,800 sentences a text", 2990, 59_800),
    TestProtocol(
        "msr_vtt_1k_a", "msr_vtt_1k_a", "MSR-VTT 1k-A: 1,000 test clips, a sentence each", 1000, 1000
    ),
    TestProtocol(
        "vatex",
        "vatex",
        "VATEX: 1,500 clips of HGR's halves; equal sentences are one text",
        1500,
        pool="merged",
        code=_HGR,
    ),
    TestProtocol("vatex_all", "vatex", "VATEX with each of the 15,000 sentences a text", 1500, 15_000),
    TestProtocol(
        "tgif",
        "tgif",
        "TGIF: 11,360 test clips, the last sentence of each",
        11_360,
        11_360,
        pool="last",
        code=_PVSE,
    ),
    TestProtocol("tgif_all", "tgif", "TGIF with all sentences of the 11,360 test clips", 11_360),
    TestProtocol("mrw", "mrw", "MRW: 5,000 test clips, a sentence each", 5000, 5000, code=_PVSE),
    TestProtocol(
        "vqa2",
        "vqa2",
        "VQA 2.0: val2014, by type of answer and of question",
        214_354,
        split="validation",
        task="vqa",
    ),
    TestProtocol(
        "cxc",
        "coco",
        "Crisscrossed Captions: recall in four directions, Spearman's r",
        5000,
        annotations=_RATINGS,
        code=_INFINITY,
    ),
    TestProtocol(
        "cxc_strict",
        "coco",
        "Crisscrossed Captions, the strict reading: 3 of 5 for all pairs",
        5000,
        annotations=_RATINGS,
    ),
    TestProtocol(
        "eccv_caption",
        "coco",
        "ECCV Caption: mAP@R, R-P and R@1 on extended positives",
        5000,
        annotations="the folder eccv_caption/data of its package",
        every=True,
        code="naver-ai/eccv-caption, eccv_caption/_metrics.py",
    ),
)

PROTOCOLS: dict[str, TestProtocol] = {protocol.name: protocol for protocol in _ALL}
"""All protocols by name."""


def protocols_of(corpus: Corpus) -> tuple[str, ...]:
    """Return the names of the protocols that a part of a data set fits."""
    return tuple(name for name, protocol in PROTOCOLS.items() if protocol.fits(corpus))


def protocol_named(name: str) -> TestProtocol:
    """Return a protocol; raise DataError, with the nearest name, if there is none of this name."""
    if name not in PROTOCOLS:
        known = [*PROTOCOLS]
        raise DataError(
            f"unknown protocol {name!r}{nearest(name, known)}{choices(known, 'openvse list protocols')}"
        )
    return PROTOCOLS[name]
