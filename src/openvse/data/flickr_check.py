"""What a copy of Flickr8k or Flickr30k lacks, and where its owners publish it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openvse.data.corpus import Corpus
from openvse.data.flickr import FLICKR8K, FLICKR30K, FlickrLayout, first_existing, open_flickr
from openvse.data.splits import SPLITS
from openvse.errors import DataError, nearest


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: whether it is as it should be, and a line to print."""

    ok: bool
    text: str


@dataclass(frozen=True)
class _Expected:
    """The published facts of a data set; counts are train, validation, test."""

    layout: FlickrLayout
    num_images: tuple[int, ...]
    split_counts: tuple[int, int, int]
    pictures_from: str
    captions_from: str
    splits_from: str


_KARPATHY = "caption_datasets.zip (36 MB) of https://cs.stanford.edu/people/karpathy/deepimagesent"
_EXPECTED = {
    "flickr8k": _Expected(
        FLICKR8K,
        (8091, 8000),
        (6000, 1000, 1000),
        "Flickr8k_Dataset.zip (1.1 GB), on request from https://hockenmaier.cs.illinois.edu/8k-pictures.html",
        "Flickr8k_text.zip (2.3 MB), on request from https://hockenmaier.cs.illinois.edu/8k-pictures.html",
        f"Flickr8k_text.zip as above, or {_KARPATHY}",
    ),
    "flickr30k": _Expected(
        FLICKR30K,
        (31783, 31014),
        (29000, 1014, 1000),
        "flickr30k-images.tar.gz (4.4 GB), on request from https://shannon.cs.illinois.edu/DenotationGraph",
        "flickr30k.tar.gz (13 MB), on request from https://shannon.cs.illinois.edu/DenotationGraph",
        _KARPATHY,
    ),
}


def check_flickr(root: str | Path, name: str = "flickr8k") -> list[Finding]:
    """Verify the files and counts of a Flickr data set.

    Args:
        root: the folder that should hold it.
        name: "flickr8k" or "flickr30k".

    Returns:
        One finding for pictures, captions, counts and splits each; what is missing comes with its size and
        the page of its owners.

    Raises:
        DataError: for another name.
    """
    if name not in _EXPECTED:
        raise DataError(
            f"no check for {name!r}{nearest(name, list(_EXPECTED))} (allowed: {', '.join(_EXPECTED)})"
        )
    expected, folder = _EXPECTED[name], Path(root)
    findings = _check_files(folder, expected)
    if not all(finding.ok for finding in findings):
        return findings
    try:
        corpus = open_flickr(expected.layout, folder)
    except DataError as error:
        return [*findings, Finding(False, str(error))]
    counts = _check_counts(corpus, expected)
    # The owners' own list of Flickr8k names a picture that is not there: with right counts, no fault.
    complete = all(finding.ok for finding in counts)
    return [*findings, *counts, *(Finding(complete, problem) for problem in corpus.problems)]


def _check_files(root: Path, expected: _Expected) -> list[Finding]:
    layout = expected.layout
    wanted = (
        ("pictures", layout.images, expected.pictures_from),
        ("captions", (layout.karpathy, *layout.captions), expected.captions_from),
    )
    findings = []
    for what, names, source in wanted:
        path = first_existing(root, names)
        missing = f"{what}: none of {', '.join(names)} in {root}; get {source}"
        findings.append(Finding(path is not None, f"{what}: {path}" if path else missing))
    return findings


def _check_counts(corpus: Corpus, expected: _Expected) -> list[Finding]:
    in_split = Counter(corpus.splits)
    counts = tuple(in_split[split] for split in SPLITS)
    allowed = " or ".join(f"{count:,}" for count in expected.num_images)
    uneven = int((np.bincount(corpus.relevance.images, minlength=len(corpus)) != 5).sum())
    split_text = f"splits: {' / '.join(map(str, counts))}"
    wrong_split = (
        f"{split_text}, expected {' / '.join(map(str, expected.split_counts))}; get {expected.splits_from}"
    )
    split_ok = counts == expected.split_counts
    return [
        Finding(len(corpus) in expected.num_images, f"images: {len(corpus):,} (expected {allowed})"),
        Finding(not uneven, f"captions: {len(corpus.captions):,}, {uneven} image(s) without exactly five"),
        Finding(split_ok, split_text if split_ok else wrong_split),
    ]
