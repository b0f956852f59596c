"""COCO captions (Lin et al., ECCV 2014): Karpathy's JSON, or the original files with the original split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.facts import Facts, Form, Piece
from openvse.datasets.layout import KARPATHY_SOURCE, first_file, first_folder, read_karpathy, reading_json
from openvse.errors import DataError

KARPATHY = ("dataset_coco.json", "annotations/dataset_coco.json", "karpathy/dataset_coco.json")
OFFICIAL = {"train2014": "train", "val2014": "validation"}
"""The original parts, and the split of each."""


def image_folders(part: str) -> tuple[str, ...]:
    """Return the possible folders of the images of a part, for instance "val2014", under the root."""
    return (f"{part}/", f"images/{part}/")


def image_piece(part: str, size: str, *, required: bool = True) -> Piece:
    """Return the piece with the images of a part, whose archive has a size such as "13 GB"."""
    source = f"{part}.zip ({size}) of https://cocodataset.org/#download"
    return Piece(f"image files of {part}", image_folders(part), source, required=required, media=True)


def _caption_files(part: str) -> tuple[str, ...]:
    return (f"annotations/captions_{part}.json", f"captions_{part}.json")


_ENDS = {"": ("COCO_train2014_000000000009.jpg", "COCO_val2014_000000581929.jpg")}
_ENDS_KARPATHY = {
    **_ENDS,
    "validation": ("COCO_val2014_000000000139.jpg", "COCO_val2014_000000581394.jpg"),
    "test": ("COCO_val2014_000000000042.jpg", "COCO_val2014_000000581929.jpg"),
}

COCO = Facts(
    name="coco",
    title="123,287 photographs of objects in context with five to seven sentences each (Lin et al., ECCV 2014; "
    "Chen et al., 2015)",
    pieces=(
        Piece(
            "captions and splits",
            (*KARPATHY, *_caption_files("train2014")),
            f"dataset_coco.json, {KARPATHY_SOURCE}: the split of the papers; or captions_train2014.json and "
            "captions_val2014.json in annotations_trainval2014.zip (241 MB) of https://cocodataset.org/#download: "
            "the owners' split, without a test part",
        ),
        image_piece("train2014", "13 GB"),
        image_piece("val2014", "6 GB"),
    ),
    forms=(
        Form("Karpathy's split (restval is training)", (113_287, 5000, 5000), 616_767, ends=_ENDS_KARPATHY),
        Form("the owners' split", (82_783, 40_504, 0), 616_767, ends=_ENDS),
    ),
    licence="the sentences under CC BY 4.0; the images belong to their photographers, on Flickr's terms of use",
)


def open_coco(root: Path, *, require_images: bool = True) -> Corpus:
    """Open COCO captions. Identifiers are file names, such as ``COCO_val2014_000000391895.jpg``.

    With Karpathy's JSON the split is 113,287 / 5,000 / 5,000, where restval counts as training. Without it, the
    original ``captions_train2014.json`` and ``captions_val2014.json`` are training and validation. There is no test
    split then, and ``problems`` reports it.
    """
    if require_images and not any(first_folder(root, image_folders(part)) for part in OFFICIAL):
        raise DataError(f"{root}: no image folder train2014/ or val2014/: see openvse list data coco")
    karpathy = first_file(root, KARPATHY)
    if karpathy:
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
    path = first_file(root, _caption_files(part))
    if path is None:
        raise DataError(
            f"{root}: neither {KARPATHY[0]} nor {_caption_files(part)[0]}: see openvse list data coco"
        )
    captions: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    with reading_json(path, "COCO's format") as tree:
        for annotation in sorted(tree["annotations"], key=lambda annotation: annotation["id"]):
            captions[annotation["image_id"]].append((int(annotation["id"]), annotation["caption"]))
        for image in tree["images"]:
            yield image["file_name"], captions[image["id"]]


def _read_official(root: Path, part: str, split: str) -> Iterator[Record]:
    """Yield the images of a part, with or without captions."""
    folder = find_image_folder(root, part)
    for name, captions in official_captions(root, part):
        yield Record(name, folder / name, [caption for _, caption in captions], split)
