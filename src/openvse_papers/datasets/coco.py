"""COCO captions (Lin et al., ECCV 2014): Karpathy's JSON, or the original files with the original split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.datasets.layout import first_file, reading_json
from openvse.errors import DataError
from openvse_papers.datasets.layout import first_folder, published, read_karpathy

KARPATHY = ("dataset_coco.json", "annotations/dataset_coco.json", "karpathy/dataset_coco.json")
OFFICIAL = {"train2014": "train", "val2014": "validation"}
"""The original parts, and the split of each."""


def image_folders(part: str) -> tuple[str, ...]:
    """Return the possible folders of the images of a part, for instance "val2014", under the root."""
    return (f"{part}/", f"images/{part}/")


def _caption_files(part: str) -> tuple[str, ...]:
    return (f"annotations/captions_{part}.json", f"captions_{part}.json")


COCO = published("coco")


def open_coco(root: Path, *, require_images: bool = True) -> Corpus:
    """Open COCO captions. Identifiers are file names, such as ``COCO_val2014_000000391895.jpg``.

    With Karpathy's JSON the split is 113,287 / 5,000 / 5,000, where restval counts as training. Without it, the
    original ``captions_train2014.json`` and ``captions_val2014.json`` are training and validation. There is no test
    split then, and ``problems`` reports it.
    """
    if require_images and not any(first_folder(root, image_folders(part)) for part in OFFICIAL):
        raise DataError(f"{root}: no image folder train2014/ or val2014/: see openvse list data coco")
    if karpathy := first_file(root, KARPATHY):
        records = in_order(
            read_karpathy(karpathy, lambda part: find_image_folder(root, part)), only_training=True
        )
        return build_corpus("coco", records, require_images=require_images)
    official = (record for part, split in OFFICIAL.items() for record in _read_official(root, part, split))
    corpus = build_corpus("coco", in_order(official, only_training=True), require_images=require_images)
    note = (
        "the owners' split of COCO: no test part, and no published retrieval figure is on it; put dataset_coco.json "
        "there for Karpathy's split"
    )
    return replace(corpus, problems=(note, *corpus.problems))


def find_image_folder(root: Path, part: str) -> Path:
    """Return the actual or expected folder of the images of a part."""
    return (first_folder(root, image_folders(part)) if part else None) or root / part


def detect_coco(root: Path) -> bool:
    """Return whether a folder holds COCO's captions."""
    return any(piece.find(root) for piece in COCO.pieces if not piece.media)


def official_captions(root: Path, part: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield the name of each image of ``captions_<part>.json``, and its captions with their numbers, in this order."""
    if (path := first_file(root, _caption_files(part))) is None:
        raise DataError(
            f"{root}: neither {KARPATHY[0]} nor {_caption_files(part)[0]}: see openvse list data coco"
        )
    captions: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    with reading_json(path, "COCO's format") as tree:
        for annotation in sorted(tree["annotations"], key=lambda annotation: annotation["id"]):
            captions[annotation["image_id"]].append((int(annotation["id"]), annotation["caption"]))
        yield from ((image["file_name"], captions[image["id"]]) for image in tree["images"])


def _read_official(root: Path, part: str, split: str) -> Iterator[Record]:
    """Yield the images of a part, with or without captions."""
    folder = find_image_folder(root, part)
    for name, captions in official_captions(root, part):
        yield Record(name, folder / name, [caption for _, caption in captions], split)
