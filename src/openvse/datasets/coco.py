"""COCO captions: Karpathy's JSON, or the owners' files with the owners' split."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.datasets.image_facts import COCO
from openvse.datasets.karpathy import read_karpathy
from openvse.errors import DataError

KARPATHY = ("dataset_coco.json", "annotations/dataset_coco.json", "karpathy/dataset_coco.json")
OFFICIAL = (("train2014", "train"), ("val2014", "validation"))
"""The owners' parts, and the split that each of them is."""


def open_coco(root: Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open COCO captions; identifiers are file names, such as ``COCO_val2014_000000391895.jpg``.

    With Karpathy's JSON the split is 113,287 / 5,000 / 5,000, his restval counting as training. Without it the owners'
    ``captions_train2014.json`` and ``captions_val2014.json`` are training and validation, there is no test split,
    and ``problems`` says so.

    Args:
        root: the folder of ``dataset_coco.json`` or ``annotations/``, and of ``train2014/`` and ``val2014/`` (or
            ``images/train2014/`` and ``images/val2014/``).
        strict: see ``build_corpus``.
        require_images: see ``build_corpus``.

    Raises:
        DataError: when captions or pictures are not found, a file has another format, and as ``build_corpus`` does.
    """
    images = root / "images" if (root / "images" / "val2014").is_dir() else root
    if require_images and not any((images / part).is_dir() for part, _ in OFFICIAL):
        raise DataError(f"{root}: no picture folder train2014 or val2014; see openvse data coco")
    karpathy = next((root / name for name in KARPATHY if (root / name).is_file()), None)
    if karpathy:
        records = in_order(read_karpathy(karpathy, images), only_training=True)
        return build_corpus("coco", records, strict=strict, require_images=require_images)
    official = (record for part in OFFICIAL for record in _read_official(root, images, *part))
    records = in_order(official, only_training=True)
    corpus = build_corpus("coco", records, strict=strict, require_images=require_images)
    note = (
        "the owners' split of COCO: no test part, and no published retrieval figure is on it; put dataset_coco.json "
        "there for Karpathy's split"
    )
    return replace(corpus, problems=(note, *corpus.problems))


def detect_coco(root: Path) -> bool:
    """Say whether a folder holds COCO's captions."""
    return any(piece.find(root) for piece in COCO.pieces if not piece.media)


def _read_official(root: Path, images: Path, part: str, split: str) -> Iterator[Record]:
    """Yield the images of ``captions_<part>.json``, with or without captions."""
    name = f"captions_{part}.json"
    path = next((folder / name for folder in (root / "annotations", root) if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"{root}: neither dataset_coco.json nor annotations/{name}; see openvse data coco")
    captions: defaultdict[int, list[str]] = defaultdict(list)
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        for annotation in sorted(tree["annotations"], key=lambda annotation: annotation["id"]):
            captions[annotation["image_id"]].append(annotation["caption"])
        for image in tree["images"]:
            file_name = image["file_name"]
            yield Record(file_name, images / part / file_name, captions.get(image["id"], ()), split)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not in COCO's format ({error!r}); download it again") from error
