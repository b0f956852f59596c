"""Flickr8k (Hodosh et al., JAIR 2013) and Flickr30K (Young et al., TACL 2014), as owners and mirrors lay them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.facts import Facts, Form, Piece
from openvse.corpus.splits import SPLITS
from openvse.datasets.layout import KARPATHY_SOURCE, first_file, first_folder, read_karpathy, read_splits
from openvse.datasets.rows import COMMENTS, field_names, read_tabbed, table_lines
from openvse.datasets.table import read_table
from openvse.errors import DataError

TABLE = "captions.txt"
"""The caption file of mirrors. Other data sets use its name too."""

RESULTS = "results.csv"
"""Kaggle's form of Flickr30k's token file. Other data sets use its name too."""

COMPACT_SPLITS = (("splits/train.txt",), ("splits/dev.txt", "splits/val.txt"), ("splits/test.txt",))
"""Lists of train, validation and test in a separate folder."""


@dataclass(frozen=True)
class FlickrLayout:
    """The possible places of the parts of a data set under its root. The first that exists is used.

    Captions are files of ``name.jpg#0<TAB>sentence``, or tables with a header ``image,caption``. For train, validation
    and test, ``splits`` are lists of file names. Karpathy's JSON has captions and splits in one.
    """

    name: str
    karpathy: str
    captions: tuple[str, ...]
    images: tuple[str, ...]
    splits: tuple[tuple[str, ...], ...]

    def fits(self, root: Path) -> bool:
        """Return whether a folder holds these files."""
        own = [name for name in (self.karpathy, *self.captions) if name not in (TABLE, RESULTS)]
        comments = RESULTS in self.captions and (root / RESULTS).is_file()
        table = (root / TABLE).is_file() or (comments and field_names(root / RESULTS) == COMMENTS)
        return first_file(root, own) is not None or (table and first_folder(root, self.images) is not None)

    def pieces(self, *, images: str, captions: str, splits: str) -> tuple[Piece, ...]:
        """Return the pieces to download, given the source of each."""
        return (
            Piece("image files", self.images, images, media=True),
            Piece("captions", (self.karpathy, *self.captions), captions),
            Piece("splits", (self.karpathy, *self.splits[-1]), splits),
        )

    def open(self, root: Path, *, require_images: bool = True) -> Corpus:
        """Open the data set.

        Images that no split list names belong to no split (Flickr8k has 91 of them). Without any list, ``Corpus.split``
        uses its split by hash, whose results cannot be compared with published ones. Images are in the order of their
        identifiers, so that every form gives the same training batches.
        """
        json_path, captions = root / self.karpathy, first_file(root, self.captions)
        images = first_folder(root, self.images)
        if images is None and require_images:
            raise DataError(
                f"{root}: no image folder {' or '.join(self.images)}: see openvse list data {self.name}"
            )
        folder = images or root
        if json_path.is_file():
            records = read_karpathy(json_path, lambda _: folder)
        elif captions:
            records = _read_captions(
                captions, folder, read_splits(root, dict(zip(SPLITS, self.splits, strict=True)))
            )
        else:
            allowed = " or ".join((self.karpathy, *self.captions))
            raise DataError(f"{root}: no caption file {allowed}: see openvse list data {self.name}")
        return build_corpus(self.name, in_order(records), require_images=require_images)


_8K_SOURCE = "on request from https://hockenmaier.cs.illinois.edu/8k-pictures.html"
_8K_ENDS = {
    "train": ("1000268201_693b08cb0e.jpg", "997338199_7343367d7f.jpg"),
    "validation": ("1022454332_6af2c1449a.jpg", "989851184_9ef368e520.jpg"),
    "test": ("1056338697_4f7d7ce270.jpg", "997722733_0cb5439472.jpg"),
}

FLICKR8K_LAYOUT = FlickrLayout(
    name="flickr8k",
    karpathy="dataset_flickr8k.json",
    captions=("Flickr8k_text/Flickr8k.token.txt", "Flickr8k.token.txt", TABLE),
    images=("Flicker8k_Dataset/", "Flickr8k_Dataset/", "images/", "Images/"),
    splits=tuple(
        (f"Flickr8k_text/Flickr_8k.{part}Images.txt", f"Flickr_8k.{part}Images.txt", *compact)
        for part, compact in zip(("train", "dev", "test"), COMPACT_SPLITS, strict=True)
    ),
)

FLICKR8K = Facts(
    name="flickr8k",
    title="8,091 photographs of people and animals with five sentences each (Hodosh, Young, Hockenmaier, JAIR 2013)",
    pieces=FLICKR8K_LAYOUT.pieces(
        images=f"Flickr8k_Dataset.zip (1.1 GB), {_8K_SOURCE}",
        captions=f"{FLICKR8K_LAYOUT.karpathy}, {KARPATHY_SOURCE}; or Flickr8k_text.zip (2.3 MB), {_8K_SOURCE}",
        splits=f"in {FLICKR8K_LAYOUT.karpathy}, {KARPATHY_SOURCE}; or in Flickr8k_text.zip (2.3 MB), {_8K_SOURCE}",
    ),
    forms=(
        Form("Karpathy's JSON", (6000, 1000, 1000), 40_000, ends=_8K_ENDS),
        Form("the owners' lists", (6000, 1000, 1000), 40_455, outside=91, ends=_8K_ENDS),
    ),
    licence="for research and education only; the images belong to their photographers, do not redistribute them",
    captions_each=5,
)

_30K_SOURCE = "on request from https://shannon.cs.illinois.edu/DenotationGraph"
_30K_ENDS = {"": ("1000092795.jpg", "998845445.jpg")}

FLICKR30K_LAYOUT = FlickrLayout(
    name="flickr30k",
    karpathy="dataset_flickr30k.json",
    captions=("results_20130124.token", TABLE, RESULTS),
    images=("flickr30k-images/", "flickr30k_images/", "images/", "Images/"),
    splits=COMPACT_SPLITS,
)

FLICKR30K = Facts(
    name="flickr30k",
    title="31,783 photographs of everyday life with five sentences each (Young, Lai, Hodosh, Hockenmaier, TACL 2014)",
    pieces=FLICKR30K_LAYOUT.pieces(
        images=f"flickr30k-images.tar.gz (4.4 GB), {_30K_SOURCE}",
        captions=f"{FLICKR30K_LAYOUT.karpathy}, {KARPATHY_SOURCE}; or flickr30k.tar.gz (13 MB), {_30K_SOURCE}",
        splits=f"in {FLICKR30K_LAYOUT.karpathy}, {KARPATHY_SOURCE}; the owners publish none",
    ),
    forms=(
        Form("Karpathy's JSON", (29_000, 1014, 1000), 155_070, ends=_30K_ENDS),
        Form(
            "the token file with Karpathy's lists",
            (29_000, 1014, 1000),
            158_915,
            outside=769,
            ends=_30K_ENDS,
        ),
    ),
    licence="for non-commercial research and education only; the images belong to their photographers "
    "(Flickr's terms), do not redistribute them",
    captions_each=5,
)


def _read_captions(path: Path, images: Path, splits: Mapping[str, set[str]]) -> Iterator[Record]:
    """Yield a record for each image and each split that lists it."""
    for name, sentences in _sentences(path).items():
        for split in splits.get(name, {""}):
            yield Record(name, images / name, sentences, split)


def _sentences(path: Path) -> dict[str, Sequence[str]]:
    """Return the sentences of each image, from a token file or from the table of mirrors."""
    lines = table_lines(path)
    captions: dict[str, list[str]] = {}
    if lines and "\t" not in lines[0]:
        for row in read_table(path):
            captions.setdefault(row.image_id, []).extend(row.captions)
        return dict(captions)
    for key, caption in read_tabbed(path, "name.jpg#0"):
        captions.setdefault(key.partition("#")[0], []).append(caption)
    return dict(captions)
