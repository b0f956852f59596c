"""Karpathy's JSON: captions and the split of Flickr8k, Flickr30K or COCO in one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from openvse.corpus.corpus import Record
from openvse.datasets.layout import in_format

KARPATHY_SOURCE = "in caption_datasets.zip (36 MB) of https://cs.stanford.edu/people/karpathy/deepimagesent"
"""Where the files are published."""


def read_karpathy(path: Path, folder_of: Callable[[str], Path]) -> Iterator[Record]:
    """Yield a record for each image, with the raw sentences and not their tokens.

    Format: ``{"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}`` (Karpathy and Fei-Fei, CVPR
    2015); only COCO has ``filepath``, the folder of the image.

    Args:
        path: the file.
        folder_of: a function that returns the folder of the image files for a ``filepath`` or "".

    Raises:
        DataError: the file cannot be read, or has another format.
    """
    with in_format(path, "Karpathy's format"):
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        folders = {name: folder_of(name) for name in {entry.get("filepath", "") for entry in entries}}
        for entry in entries:
            sentences = [sentence["raw"] for sentence in entry["sentences"]]
            file = folders[entry.get("filepath", "")] / entry["filename"]
            yield Record(entry["filename"], file, sentences, entry["split"])
