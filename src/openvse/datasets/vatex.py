"""VATEX (Wang et al., ICCV 2019): clips with 10 English sentences each. Half of the validation clips are the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts, Form, Piece
from openvse.corpus.splits import hashed_splits
from openvse.datasets.clip_files import YOUTUBE_TERMS, clip_corpus
from openvse.datasets.layout import read_splits, reading_json, require_file

TRAINING = ("vatex_training_v1.0.json", "annotations/vatex_training_v1.0.json")
VALIDATION = ("vatex_validation_v1.0.json", "annotations/vatex_validation_v1.0.json")
LISTS = {"validation": ("splits/val.txt", "val.txt"), "test": ("splits/test.txt", "test.txt")}
FOLDERS = ("videos/", "train/", "val/", "videos/train/", "videos/val/", "training/", "validation/")
_BY_HASH = (
    "vatex: splits/val.txt and splits/test.txt are not there, so the validation clips are cut in two halves by a hash; "
    "published figures are on the halves of HGR"
)

_OWNERS = "https://eric-xw.github.io/vatex-website"

# Counts are those of the papers; they were not compared with the original files.
VATEX = Facts(
    name="vatex",
    title="28,991 clips of 10 seconds with ten English sentences each; half of its validation clips are the test "
    "(Wang et al., ICCV 2019; Chen et al., CVPR 2020)",
    pieces=(
        Piece("captions of the training clips", TRAINING, f"{TRAINING[0]} of {_OWNERS}"),
        Piece("captions of the validation clips", VALIDATION, f"{VALIDATION[0]} of {_OWNERS}"),
        Piece(
            "halves of the validation clips",
            LISTS["test"],
            "a file next to splits/val.txt with one name per line, to be written from the data of https://github.com/cshizhe/hgr_v2t",
            required=False,
        ),
        Piece(
            "clips",
            FOLDERS,
            "from YouTube by their identifiers and seconds; the owners publish I3D features instead",
            media=True,
        ),
    ),
    forms=(Form("HGR's halves", (25_991, 1500, 1500), 289_910),),
    licence=f"the sentences under CC BY 4.0; {YOUTUBE_TERMS}",
    items="clips",
    captions_each=10,
    shrinks=True,
)


def open_vatex(root: Path, *, require_images: bool = True) -> Corpus:
    """Open VATEX as in HGR and VSE-infinity: half of its validation clips are the test.

    There are 25,991 clips for training, and 1,500 of the 3,000 validation clips for each of validation and test.
    ``splits/val.txt`` and ``splits/test.txt`` list the clips of the halves. Without them a hash divides the clips, in
    the same way on every machine, and ``problems`` reports it. Only the English sentences are read.
    """
    training = dict(_read(require_file("vatex", root, TRAINING)))
    validation = dict(_read(require_file("vatex", root, VALIDATION)))
    listed = read_splits(root, LISTS)
    clips = list(validation)
    halves = dict(zip(clips, hashed_splits(clips, (0.0, 0.5, 0.5)), strict=True))
    splits = {key: {"train"} for key in training}
    splits |= listed or {clip: {half} for clip, half in halves.items()}
    return clip_corpus(
        "vatex",
        root,
        training | validation,
        splits,
        FOLDERS,
        require_images=require_images,
        notes=() if listed else (_BY_HASH,),
    )


def _read(path: Path) -> Iterator[tuple[str, list[str]]]:
    with reading_json(path, "VATEX's format") as entries:
        yield from ((entry["videoID"], entry["enCap"]) for entry in entries)
