"""TGIF (Li et al., CVPR 2016) and MRW (PVSE, section 4): animated GIFs from the web, by their addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from openvse.corpus.corpus import Corpus
from openvse.datasets.clips import clip_corpus
from openvse.datasets.layout import published, read_splits, reading_json, require_file
from openvse.datasets.rows import read_tabbed

TGIF, MRW = published("tgif"), published("mrw")
_PARTS = {"train": ("train",), "validation": ("val", "valid"), "test": ("test",)}
LISTS = {
    split: tuple(f"{folder}/{name}.txt" for folder in ("splits", "data/splits", "split") for name in names)
    for split, names in _PARTS.items()
}
"""The lists of TGIF's owners, and PVSE's (``split/valid.txt``)."""

MRW_LISTS = {split: tuple(f"split/{name}.tsv" for name in names) for split, names in _PARTS.items()}
FOLDERS = TGIF.places("clips")


def open_tgif(root: Path, *, require_images: bool = True) -> Corpus:
    """Open TGIF in its published form: ``tgif-v1.0.tsv``, an address and a sentence per line, and lists of addresses.

    The name of a clip is the file name in its address, without suffix. It may be stored as GIF or as any kind of video.
    PVSE's form is read too: ``tgif-v1.0-gulp.tsv``, with the unused number of frames in a third column, and ``split/``.
    """
    table = require_file("tgif", root, TGIF.places("captions"))
    lines = list(read_tabbed(table, "the clip's address", counts="its number of frames"))
    listed = read_splits(root, LISTS)
    name_of = clip_names([*(address for address, _ in lines), *listed])
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for address, sentence in lines:
        captions[name_of[address]].append(sentence)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for address, where in listed.items():
        splits[name_of[address]] |= where
    return clip_corpus("tgif", root, captions, splits, FOLDERS, require_images=require_images)


def open_mrw(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MRW as PVSE publishes it: ``mrw-v1.0.json``, a list of objects with ``id`` and ``sentence``.

    The lists of ids are ``split/train.tsv``, ``valid.tsv`` (or ``val.tsv``) and ``test.tsv``. A clip is
    ``mp4/<id>.mp4``, or another kind of video or animation of this name.
    """
    captions: defaultdict[str, list[str]] = defaultdict(list)
    with reading_json(require_file("mrw", root, MRW.places("captions")), "PVSE's format") as tree:
        for each in tree:
            captions[str(each["id"])].append(each["sentence"].strip())
    splits = read_splits(root, MRW_LISTS)
    return clip_corpus("mrw", root, captions, splits, FOLDERS, require_images=require_images)


def clip_names(addresses: Iterable[str]) -> dict[str, str]:
    """Return the names of the clips at some addresses: the file name without suffix.

    A file at several hosts is one clip. If a host gives all files the same name (``.../7rj2ZgttvgomY/giphy.gif``),
    the name of the folder and an underscore are put before it.
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
