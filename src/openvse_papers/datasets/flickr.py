"""Flickr8k (Hodosh et al., JAIR 2013) and Flickr30K (Young et al., TACL 2014), as owners and mirrors lay them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.splits import SPLITS
from openvse.datasets.layout import first_file
from openvse.datasets.rows import COMMENTS, field_names, read_tabbed, table_lines
from openvse.datasets.table import read_table
from openvse.errors import DataError
from openvse_papers.datasets.layout import first_folder, published, read_karpathy, read_splits

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

    def open(self, root: Path, *, require_images: bool = True) -> Corpus:
        """Open the data set.

        Images that no split list names belong to no split (Flickr8k has 91 of them). Without any list, ``Corpus.split``
        uses its split by hash, whose results cannot be compared with published ones. Images are in the order of their
        identifiers, so that every form gives the same training batches.
        """
        json_path, captions = root / self.karpathy, first_file(root, self.captions)
        if (images := first_folder(root, self.images)) is None and require_images:
            raise DataError(
                f"{root}: no image folder {' or '.join(self.images)}: see openvse list data {self.name}"
            )
        folder = images or root
        if json_path.is_file():
            records = read_karpathy(json_path, lambda _: folder)
        elif captions:
            splits = read_splits(root, dict(zip(SPLITS, self.splits, strict=True)))
            records = _read_captions(captions, folder, splits)
        else:
            allowed = " or ".join((self.karpathy, *self.captions))
            raise DataError(f"{root}: no caption file {allowed}: see openvse list data {self.name}")
        return build_corpus(self.name, in_order(records), require_images=require_images)


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

FLICKR30K_LAYOUT = FlickrLayout(
    name="flickr30k",
    karpathy="dataset_flickr30k.json",
    captions=("results_20130124.token", TABLE, RESULTS),
    images=("flickr30k-images/", "flickr30k_images/", "images/", "Images/"),
    splits=COMPACT_SPLITS,
)

FLICKR8K, FLICKR30K = published("flickr8k"), published("flickr30k")


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
