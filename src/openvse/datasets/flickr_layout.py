"""Code that Flickr8k and Flickr30k share: the layouts of their files by the owners, Karpathy and mirrors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.facts import Piece
from openvse.corpus.splits import SPLITS
from openvse.datasets.csv_file import read_lines, read_table
from openvse.datasets.karpathy import read_karpathy
from openvse.datasets.places import first_file, first_folder
from openvse.errors import DataError

TABLE = "captions.txt"
"""The caption file of mirrors, whose name other data sets use too."""

COMPACT_SPLITS = (("splits/train.txt",), ("splits/dev.txt", "splits/val.txt"), ("splits/test.txt",))
"""Lists of train, validation and test in a separate folder."""


@dataclass(frozen=True)
class FlickrLayout:
    """The possible places of the parts of a data set under its root; the first that exists is used.

    Attributes:
        name: the data set.
        karpathy: Karpathy's JSON, with captions and splits in one.
        captions: files of ``name.jpg#0<TAB>sentence``, or tables with a header ``image,caption``.
        images: folders of the images.
        splits: for train, validation and test, lists of the file names.
    """

    name: str
    karpathy: str
    captions: tuple[str, ...]
    images: tuple[str, ...]
    splits: tuple[tuple[str, ...], ...]

    def fits(self, root: Path) -> bool:
        """Return whether a folder holds these files."""
        own = [name for name in (self.karpathy, *self.captions) if name != TABLE]
        table = (root / TABLE).is_file() and first_folder(root, self.images) is not None
        return first_file(root, own) is not None or table

    def pieces(self, *, images: str, captions: str, splits: str) -> tuple[Piece, ...]:
        """Return the pieces to download, given the source of each."""
        return (
            Piece("image files", self.images, images, media=True),
            Piece("captions", (self.karpathy, *self.captions), captions),
            Piece("splits", (self.karpathy, *self.splits[-1]), splits),
        )


def open_flickr(layout: FlickrLayout, root: Path, *, require_images: bool = True) -> Corpus:
    """Open Flickr8k or Flickr30k.

    Images that no split list names belong to no split (Flickr8k has 91 of them). Without any list, ``Corpus.split``
    uses its split by hash, whose results cannot be compared with published ones. Images are in the order of their
    identifiers, so that every form gives the same training batches.

    Args:
        layout: the possible places of the files.
        root: the folder with the files of the data set.
        require_images: see ``build_corpus``.

    Raises:
        DataError: captions or images are not found, or see ``build_corpus``.
    """
    json_path, captions = root / layout.karpathy, first_file(root, layout.captions)
    images = first_folder(root, layout.images)
    if images is None and require_images:
        raise DataError(
            f"{root}: no image folder {' or '.join(layout.images)}; see openvse data {layout.name}"
        )
    folder = images or root
    if json_path.is_file():
        records = read_karpathy(json_path, lambda _: folder)
    elif captions:
        records = _read_captions(captions, folder, _read_splits(root, layout))
    else:
        allowed = " or ".join((layout.karpathy, *layout.captions))
        raise DataError(f"{root}: no caption file {allowed}; see openvse data {layout.name}")
    return build_corpus(layout.name, in_order(records), require_images=require_images)


def _read_splits(root: Path, layout: FlickrLayout) -> dict[str, list[str]]:
    """Return the splits whose lists name a file: one, if the lists are correct."""
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for split, names in zip(SPLITS, layout.splits, strict=True):
        path = first_file(root, names)
        for name in {line.strip() for line in read_lines(path) if line.strip()} if path else ():
            splits[name].append(split)
    return splits


def _read_captions(path: Path, images: Path, splits: dict[str, list[str]]) -> Iterator[Record]:
    """Yield a record for each image and each split that lists it."""
    for name, sentences in _sentences(path).items():
        for split in splits.get(name, [""]):
            yield Record(name, images / name, sentences, split)


def _sentences(path: Path) -> dict[str, Sequence[str]]:
    """Return the sentences of each image, from a token file or from the table of mirrors."""
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
