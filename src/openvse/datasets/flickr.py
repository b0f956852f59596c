"""Flickr8k and Flickr30k as their owners, Karpathy and the mirrors lay them out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.splits import SPLITS
from openvse.datasets.csv_file import read_lines, read_table
from openvse.datasets.karpathy import read_karpathy
from openvse.errors import DataError


@dataclass(frozen=True)
class FlickrLayout:
    """Where the parts of a data set may lie under its root; of each list the first that exists is used.

    Attributes:
        name: the data set.
        karpathy: Karpathy's JSON, with captions and splits in one.
        captions: files of ``name.jpg#0<TAB>sentence``, or tables with a header ``image,caption``.
        images: folders of the pictures.
        splits: for train, validation and test, lists of the file names.
    """

    name: str
    karpathy: str
    captions: tuple[str, ...]
    images: tuple[str, ...]
    splits: tuple[tuple[str, ...], ...]


TABLE = "captions.txt"
"""What mirrors call the caption file: a name that others use too."""

_COMPACT_SPLITS = (("splits/train.txt",), ("splits/dev.txt", "splits/val.txt"), ("splits/test.txt",))

FLICKR8K = FlickrLayout(
    name="flickr8k",
    karpathy="dataset_flickr8k.json",
    captions=("Flickr8k_text/Flickr8k.token.txt", "Flickr8k.token.txt", TABLE),
    images=("Flicker8k_Dataset", "Flickr8k_Dataset", "images", "Images"),
    splits=tuple(
        (f"Flickr8k_text/Flickr_8k.{part}Images.txt", f"Flickr_8k.{part}Images.txt", *compact)
        for part, compact in zip(("train", "dev", "test"), _COMPACT_SPLITS, strict=True)
    ),
)
FLICKR30K = FlickrLayout(
    name="flickr30k",
    karpathy="dataset_flickr30k.json",
    captions=("results_20130124.token", TABLE),
    images=("flickr30k-images", "flickr30k_images", "images", "Images"),
    splits=_COMPACT_SPLITS,
)


def open_flickr(
    layout: FlickrLayout, root: Path, *, strict: bool = False, require_images: bool = True
) -> Corpus:
    """Open Flickr8k or Flickr30k.

    Images that no split list names belong to no split (Flickr8k has 91 of them). Without any list,
    ``Corpus.split`` falls back to its split by hash, whose numbers cannot be compared with published ones. Images come
    in the order of their identifiers, so that every form gives the same training batches.

    Args:
        layout: ``FLICKR8K`` or ``FLICKR30K``.
        root: the folder that holds the data set's files.
        strict: see ``build_corpus``.
        require_images: see ``build_corpus``.

    Raises:
        DataError: when captions or pictures are not found, and as ``build_corpus`` does.
    """
    json_path, captions = root / layout.karpathy, first_existing(root, layout.captions)
    images = first_existing(root, layout.images)
    if images is None and require_images:
        raise DataError(
            f"{root}: no picture folder {' or '.join(layout.images)}; see openvse data {layout.name}"
        )
    folder = images or root
    if json_path.is_file():
        records = read_karpathy(json_path, folder)
    elif captions:
        records = _read_captions(captions, folder, _read_splits(root, layout))
    else:
        allowed = " or ".join((layout.karpathy, *layout.captions))
        raise DataError(f"{root}: no caption file {allowed}; see openvse data {layout.name}")
    return build_corpus(layout.name, in_order(records), strict=strict, require_images=require_images)


def open_flickr8k(root: Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open Flickr8k; see ``open_flickr``."""
    return open_flickr(FLICKR8K, root, strict=strict, require_images=require_images)


def open_flickr30k(root: Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open Flickr30k; see ``open_flickr``."""
    return open_flickr(FLICKR30K, root, strict=strict, require_images=require_images)


def detect_flickr(root: Path) -> FlickrLayout | None:
    """Return the data set whose files a folder holds; files that fit both count as Flickr8k."""
    for layout in (FLICKR8K, FLICKR30K):
        own = tuple(name for name in (layout.karpathy, *layout.captions) if name != TABLE)
        pictures = first_existing(root, layout.images)
        if first_existing(root, own) or (pictures and (root / TABLE).is_file()):
            return layout
    return None


def first_existing(root: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first of some paths under ``root`` that exists."""
    return next((root / name for name in names if (root / name).exists()), None)


def _read_splits(root: Path, layout: FlickrLayout) -> dict[str, list[str]]:
    """Return the splits whose lists name a file: one, if the lists are sound."""
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for split, names in zip(SPLITS, layout.splits, strict=True):
        path = first_existing(root, names)
        for name in {line.strip() for line in read_lines(path) if line.strip()} if path else ():
            splits[name].append(split)
    return splits


def _read_captions(path: Path, images: Path, splits: dict[str, list[str]]) -> Iterator[Record]:
    """Yield a record for each image and split that it is listed in."""
    for name, sentences in _sentences(path).items():
        for split in splits.get(name, [""]):
            yield Record(name, images / name, sentences, split)


def _sentences(path: Path) -> dict[str, Sequence[str]]:
    """Return the sentences of each image, from a token file or from the table that mirrors make of it."""
    lines = read_lines(path)
    if lines and "\t" not in lines[0]:
        return {record.image_id: record.captions for record in read_table(path)}
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        key, tab, caption = line.partition("\t")
        if not tab and line.strip():
            raise DataError(f"{path}, line {number}: write name.jpg#0, a tab and the sentence")
        if tab:
            captions.setdefault(key.partition("#")[0], []).append(caption)
    return dict(captions)
