"""Leakage: an item that stands in two splits, by its identifier or by the bytes of its file."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from openvse.corpus.splits import SPLITS
from openvse.errors import BadImageError
from openvse.media.packed import ImageFile
from openvse.types import OnProgress

LEAKAGE = "leakage"
"""How a line about leakage begins."""

_TAIL_BYTES = 4096


def one_split_each(ids: Sequence[str], splits: Sequence[str]) -> tuple[list[int], list[str]]:
    """Leave an item that is listed in several splits in the last of train, validation and test alone.

    So nothing that a model is judged by was trained on. An item that is listed twice in the same split, or without
    one, is none of this function's business.

    Args:
        ids: an identifier for each entry.
        splits: "train", "validation", "test" or "" for each entry.

    Returns:
        The positions to keep, in order, and the identifiers that were in several splits.
    """
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for item, split in zip(ids, splits, strict=True):
        listed[item].add(split)
    last = {
        item: max(where, key=SPLITS.index)
        for item, where in listed.items()
        if len(where) > 1 and "" not in where
    }
    if not last:
        return list(range(len(ids))), []
    keep = [number for number, item in enumerate(ids) if splits[number] == last.get(item, splits[number])]
    return keep, list(last)


def equal_files(
    paths: Sequence[ImageFile], splits: Sequence[str], progress: OnProgress | None = None
) -> list[tuple[int, int]]:
    """Find files of equal content in different splits.

    Most files are told apart by their size and last bytes; only what agrees in both is read in full.

    Args:
        paths: a file for each item; those that are not there are passed over.
        splits: the split of each item; those in no split ("") are left out.
        progress: called after every group of files that may be equal.

    Returns:
        Pairs of positions, the item of the earlier split first.
    """
    groups = [[number for number, split in enumerate(splits) if split]]
    for work, key in (("sizes of files", _size), ("ends of files", _tail), ("equal files", _content)):
        total, done, left = sum(map(len, groups)), 0, groups
        groups = []
        for group in left:
            groups += _suspects(group, paths, splits, key)
            done += len(group)
            if progress is not None:
                progress(f"comparing {work}", done, total)
    pairs = []
    for group in groups:
        first, *others = sorted(group, key=lambda number: SPLITS.index(splits[number]))
        pairs += [(first, other) for other in others if splits[other] != splits[first]]
    return sorted(pairs)


def _suspects(
    group: Iterable[int],
    paths: Sequence[ImageFile],
    splits: Sequence[str],
    key: Callable[[ImageFile], Hashable],
) -> list[list[int]]:
    """Cut a group by a key; parts that lie within one split are of no interest."""
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in group:
        try:
            parts[key(paths[number])].append(number)
        except (OSError, BadImageError):
            continue  # a file that is not there cannot leak; that it is not there is reported elsewhere
    return [part for part in parts.values() if len({splits[number] for number in part}) > 1]


def _size(path: ImageFile) -> int:
    return path.stat().st_size if isinstance(path, Path) else len(path.read_bytes())


def _tail(path: ImageFile) -> bytes:
    if not isinstance(path, Path):
        return path.read_bytes()[-_TAIL_BYTES:]
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read()


def _content(path: ImageFile) -> bytes:
    if not isinstance(path, Path):
        return hashlib.blake2b(path.read_bytes()).digest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
