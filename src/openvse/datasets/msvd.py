"""MSVD (Chen and Dolan, ACL 2011): 1,970 clips of YouTube with about 40 English sentences each."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts, Piece
from openvse.datasets.clip_files import YOUTUBE_TERMS, clip_corpus
from openvse.datasets.layout import read_splits, require_file
from openvse.datasets.rows import table_lines
from openvse.errors import DataError

CAPTIONS = ("AllVideoDescriptions.txt", "annotations/AllVideoDescriptions.txt")
LISTS = {
    "train": ("train_list.txt", "splits/train_list.txt", "splits/train.txt"),
    "validation": ("val_list.txt", "splits/val_list.txt", "splits/val.txt"),
    "test": ("test_list.txt", "splits/test_list.txt", "splits/test.txt"),
}
FOLDERS = ("YouTubeClips/", "videos/", "MSVD_Videos/")

_TEXAS = "https://www.cs.utexas.edu/users/ml/clamp/videoDescription"

MSVD = Facts(
    name="msvd",
    title="1,970 clips of YouTube with about 40 English sentences each (Chen and Dolan, ACL 2011)",
    pieces=(
        Piece("captions", CAPTIONS, f"{CAPTIONS[0]} of {_TEXAS}"),
        Piece(
            "splits",
            LISTS["test"],
            "train_list.txt, val_list.txt and test_list.txt, with the data of the public code of CLIP4Clip",
        ),
        Piece("clips", FOLDERS, f"YouTubeClips.tar (about 2 GB) of {_TEXAS}", media=True),
    ),
    forms=(),
    licence=YOUTUBE_TERMS,
    items="clips",
)

# The name of a clip is its YouTube identifier and the seconds at which it begins and ends.
_LINE = re.compile(r"(\S{11}_\d+_\d+)\s+(.*)")


def open_msvd(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSVD in the usual split of 1,200 / 100 / 670 clips.

    Each line of ``AllVideoDescriptions.txt``, after a few introductory lines, has the name of a clip and a sentence.
    Each line of the lists has the name of a clip.
    """
    captions = _read(require_file("msvd", root, CAPTIONS))
    splits = {Path(name).stem: where for name, where in read_splits(root, LISTS).items()}
    return clip_corpus("msvd", root, captions, splits, FOLDERS, require_images=require_images)


def _read(path: Path) -> dict[str, list[str]]:
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(table_lines(path), start=1):
        match = _LINE.fullmatch(line.strip())
        if match:
            captions[match[1]].append(match[2])
        elif captions and line.strip():
            raise DataError(f"{path}, line {number}: write the clip's name, a space and the sentence")
    return captions
