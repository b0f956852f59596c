"""Published test protocols as data: which part of which data set, in how many folds, with which metrics."""

from __future__ import annotations

from dataclasses import dataclass

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

    def mismatch(self, items: int, texts: int) -> str:
        """Return a line if another number of items is evaluated than the protocol has, or ""."""
        if self.items in (0, items) and self.texts in (0, texts):
            return ""
        wanted = " and ".join(f"{count:,}" for count in (self.items, self.texts) if count)
        found = " and ".join(
            f"{count:,}" for count, want in ((items, self.items), (texts, self.texts)) if want
        )
        return (
            f"protocol {self.name} has {wanted} items, and {found} are evaluated: the figures are not of it"
        )


_ALL = (
    TestProtocol("flickr8k", "flickr8k", "1,000 test images of Flickr8k, five sentences each", 1000, 5000),
    TestProtocol(
        "flickr30k_1k", "flickr30k", "Flickr30K 1K: Karpathy's test images, five sentences each", 1000, 5000
    ),
    TestProtocol("coco_5k", "coco", "COCO 5K: Karpathy's 5,000 test images as one gallery", 5000, 25_010),
    TestProtocol(
        "coco_1k", "coco", "COCO 1K: the mean of five folds of 1,000 test images", 5000, 25_010, folds=5
    ),
    TestProtocol("msr_vtt", "msr_vtt", "MSR-VTT: 2,990 test clips, 20 sentences each", 2990, 59_800),
    TestProtocol(
        "msr_vtt_1k_a", "msr_vtt_1k_a", "MSR-VTT 1k-A: 1,000 test clips, a sentence each", 1000, 1000
    ),
    TestProtocol(
        "vatex", "vatex", "VATEX: 1,500 test clips of HGR's halves, ten sentences each", 1500, 15_000
    ),
    TestProtocol("tgif", "tgif", "TGIF: 11,360 test clips (PVSE reads MedR and nMR)", 11_360),
    TestProtocol("mrw", "mrw", "MRW: 5,000 test clips, a sentence each (PVSE reads MedR)", 5000, 5000),
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
        annotations="the folder of its CSV files (sits_test.csv, ...)",
    ),
    TestProtocol(
        "eccv_caption",
        "coco",
        "ECCV Caption: mAP@R, R-P and R@1 on extended positives",
        5000,
        annotations="the folder eccv_caption/data of its package",
        every=True,
    ),
)

PROTOCOLS: dict[str, TestProtocol] = {protocol.name: protocol for protocol in _ALL}
"""All protocols by name."""


def protocol_named(name: str) -> TestProtocol:
    """Return a protocol.

    Raises:
        DataError: there is none of this name; the message has the nearest.
    """
    if name not in PROTOCOLS:
        known = [*PROTOCOLS]
        raise DataError(
            f"unknown protocol {name!r}{nearest(name, known)}{choices(known, 'openvse protocols')}"
        )
    return PROTOCOLS[name]
