"""TGIF (Li et al., CVPR 2016) and MRW (PVSE, section 4): animated GIF from the web, by their addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from openvse.corpus.corpus import Corpus
from openvse.datasets.clip_files import clip_corpus, read_splits, require_file
from openvse.datasets.csv_file import read_lines
from openvse.errors import DataError

TGIF_CAPTIONS = ("data/tgif-v1.0.tsv", "tgif-v1.0.tsv")
MRW_CAPTIONS = ("data/mrw-v1.0.tsv", "mrw-v1.0.tsv")
LISTS = {
    "train": ("data/splits/train.txt", "splits/train.txt"),
    "validation": ("data/splits/val.txt", "splits/val.txt"),
    "test": ("data/splits/test.txt", "splits/test.txt"),
}
FOLDERS = ("gifs", "gif", "videos", "data/gifs", "images")


def open_tgif(root: Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open TGIF as its owners publish it: ``tgif-v1.0.tsv``, an address and a sentence a line, and lists of addresses.

    A clip is called like the file of its address, without suffix; it may be kept as GIF or as any kind of video.

    Args:
        root: the folder of ``tgif-v1.0.tsv``, ``splits/`` (both may be below ``data/``) and ``gifs/``.
        strict: see ``build_corpus``.
        require_images: see ``build_corpus``.

    Raises:
        DataError: captions or clips are not found, a line is malformed (with its number), and as ``build_corpus`` does.
    """
    return _open("tgif", root, TGIF_CAPTIONS, strict=strict, require_images=require_images)


def open_mrw(root: Path, *, strict: bool = False, require_images: bool = True) -> Corpus:
    """Open MRW in TGIF's layout: ``mrw-v1.0.tsv`` with an address and a sentence a line, and ``splits/``.

    See ``open_tgif``, also for the errors.
    """
    return _open("mrw", root, MRW_CAPTIONS, strict=strict, require_images=require_images)


def clip_names(addresses: Iterable[str]) -> dict[str, str]:
    """Name the clips behind some addresses: the file's name without suffix.

    A file at several hosts is one clip. Where hosts call all files alike (``.../7rj2ZgttvgomY/giphy.gif``), the
    folder's name goes before it, with an underscore.
    """
    places = {address: PurePosixPath(urlsplit(address).path) for address in addresses}
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for path in places.values():
        folders[path.stem].add(path.parent.name)
    return {
        address: path.stem
        if len(folders[path.stem]) == 1 or path.stem.startswith("tumblr_")
        else f"{path.parent.name}_{path.stem}"
        for address, path in places.items()
    }


def _open(name: str, root: Path, tables: Sequence[str], *, strict: bool, require_images: bool) -> Corpus:
    lines = list(_read(require_file(name, root, tables)))
    listed = read_splits(root, LISTS)
    name_of = clip_names([*(address for address, _ in lines), *listed])
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for address, sentence in lines:
        captions[name_of[address]].append(sentence)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for address, where in listed.items():
        splits[name_of[address]] |= where
    return clip_corpus(name, root, captions, splits, FOLDERS, strict=strict, require_images=require_images)


def _read(path: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        address, tab, sentence = line.rstrip("\r").partition("\t")
        if tab:
            yield address.strip(), sentence
        elif line.strip():
            raise DataError(f"{path}, line {number}: write the clip's address, a tab and the sentence")
