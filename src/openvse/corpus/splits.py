"""Splits: their names, a deterministic one for data that has none, and leakage, an item that is in two of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from openvse.errors import BadImageError, DataError
from openvse.media.packed import ImageFile
from openvse.types import OnProgress

SPLITS = ("train", "validation", "test")

# restval: images of COCO's validation set that Karpathy's split gives to training.
_SYNONYMS = {
    "train": "train",
    "training": "train",
    "restval": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


def canonical_split(name: str) -> str:
    """Return "train", "validation" or "test" for a name or synonym; raise DataError for another word."""
    split = _SYNONYMS.get(name.strip().lower())
    if split is None:
        raise DataError(f"unknown split {name!r}; use one of {', '.join(SPLITS)} (or dev, val)")
    return split


def is_split(name: str) -> bool:
    """Return whether a word is the name of a split or a synonym."""
    return name.strip().lower() in _SYNONYMS


def split_positions(
    name: str, labels: Sequence[str], *, of: str, unit: str
) -> tuple[str, Int[np.ndarray, "chosen"]]:
    """Return the canonical name of a split, and the positions of what is in it.

    Args:
        name: a name or synonym of a split.
        labels: the split of each item, "" for none.
        of: the name of the data in messages.
        unit: what the items are called in messages.

    Raises:
        DataError: the name is unknown, or the split is empty; the message lists the splits.
    """
    wanted, known = canonical_split(name), np.asarray(labels, dtype=object)
    positions = np.flatnonzero(known == wanted)
    if not len(positions):
        counts = ", ".join(f"{split or 'in no split'}: {(known == split).sum()}" for split in (*SPLITS, ""))
        raise DataError(f"{of}: no {unit} is in split {name!r} ({counts}); name a split that has {unit}s")
    return wanted, positions


def stable_hash(text: str) -> int:
    """Return 64 bits that depend only on the text, unlike ``hash``, which differs from run to run."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hashed_splits(
    ids: Sequence[str], proportions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> tuple[str, ...]:
    """Split items by a hash of their identifiers.

    The items are ordered by hash and cut at the shares: the counts are exact to one item, the order of the list and the
    machine do not matter, and if items are added, only those next to a cut can change their split.

    Args:
        ids: the identifier of each item.
        proportions: shares of train, validation and test, which sum to 1.

    Raises:
        DataError: the shares are negative or do not sum to 1.
    """
    if min(proportions) < 0 or abs(sum(proportions) - 1) > 1e-6:
        raise DataError(f"split proportions {proportions} must not be negative and must sum to 1")
    order = np.argsort([stable_hash(name) for name in ids], kind="stable")
    cuts = np.rint(np.cumsum(proportions) * len(ids))
    splits = np.empty(len(ids), dtype=object)
    splits[order] = np.asarray(SPLITS, dtype=object)[np.searchsorted(cuts, np.arange(len(ids)), side="right")]
    return tuple(splits)


LEAKAGE = "leakage"
"""The beginning of a line about leakage."""

_TAIL_BYTES = 4096


def one_split_each(ids: Sequence[str], splits: Sequence[str]) -> tuple[list[int], list[str]]:
    """Keep an item that is listed in several splits only in the last of train, validation and test.

    So a model is never evaluated on an item that it was trained on. Items that are listed twice in the same split, or
    without one, are not changed.

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
    """Find files with equal content in different splits.

    Most files differ in their size or last bytes; only files that agree in both are read in full.

    Args:
        paths: the file of each item; missing files are skipped.
        splits: the split of each item; items in no split ("") are left out.
        progress: a function that is called after every group of files that may be equal.

    Returns:
        Pairs of positions, with the item of the earlier split first.
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
    """Divide a group by a key; drop parts within one split."""
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in group:
        try:
            parts[key(paths[number])].append(number)
        except (OSError, BadImageError):
            continue  # a missing file cannot leak; that it is missing is reported elsewhere
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
