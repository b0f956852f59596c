"""Splits: their names, a deterministic split for data without one, and leakage, an item or its file in two splits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int

from openvse.errors import BadImageError, DataError
from openvse.media.listing import FileSlice, ImageFile, Problem, content_digest
from openvse.types import OnProgress

_TAIL_BYTES = 4096


def equal_content(
    files: Sequence[ImageFile],
    positions: Iterable[int] | None = None,
    *,
    worth: Callable[[Sequence[int]], bool] = lambda group: len(group) > 1,
    progress: OnProgress | None = None,
) -> list[list[int]]:
    """Find files with equal bytes, without missing and empty ones and without groups that are not ``worth`` it.

    Most files differ in their size or last bytes. Only files that agree in both are read in full.
    """
    groups = [list(range(len(files)) if positions is None else positions)]
    for work, key in (("sizes of files", _size), ("ends of files", _tail), ("equal files", content_digest)):
        total, done, left = sum(map(len, groups)), 0, groups
        groups = []
        for group in left:
            groups += [part for part in _divided(group, files, key) if worth(part)]
            done += len(group)
            if progress is not None:
                progress(f"comparing {work}", done, total)
    return sorted(groups)


def _divided(
    group: Iterable[int], files: Sequence[ImageFile], key: Callable[[ImageFile], Hashable]
) -> Iterable[list[int]]:
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in group:
        with suppress(OSError, BadImageError):  # that a file is missing is reported elsewhere
            parts[key(files[number])].append(number)
    parts.pop(0, None)  # empty files are no images
    return parts.values()


def _size(file: ImageFile) -> Hashable:
    if isinstance(file, Path):
        return file.stat().st_size
    return file.size if isinstance(file, FileSlice) else file.digest()


def _tail(file: ImageFile) -> bytes:
    if isinstance(file, Path):
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return content.read()
    return file.read_bytes()[-_TAIL_BYTES:] if isinstance(file, FileSlice) else b""


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
    """Return "train", "validation" or "test" for a name or synonym. Raise DataError for another word."""
    split = _SYNONYMS.get(name.strip().lower())
    if split is None:
        raise DataError(f"unknown split {name!r}: use one of {', '.join(SPLITS)} (or dev, val)")
    return split


def is_split(name: str) -> bool:
    """Return whether a word is the name of a split or a synonym."""
    return name.strip().lower() in _SYNONYMS


def split_positions(
    name: str, labels: Sequence[str], *, of: str, unit: str, files: Sequence[ImageFile] = ()
) -> tuple[str, Int[np.ndarray, "chosen"]]:
    """Return the canonical name of a split, and the positions of its items, with ``files`` if splits are drawn."""
    wanted, known = canonical_split(name), np.asarray(labels, dtype=object)
    positions = np.flatnonzero(known == wanted)
    if not len(positions):
        counts = ", ".join(f"{split or 'in no split'}: {(known == split).sum()}" for split in (*SPLITS, ""))
        equal = max(map(len, equal_content(files)), default=0)
        why = f"; {equal:,} image files are equal, and equal files stay in one split" if equal > 1 else ""
        raise DataError(f"{of}: no {unit} is in split {name!r} ({counts}){why}: name a split that has {unit}s")
    return wanted, positions


def stable_hash(text: str) -> int:
    """Return 64 bits that depend only on the text, unlike ``hash``, which differs from run to run."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def hashed_splits(
    ids: Sequence[str], proportions: tuple[float, float, float] = (0.8, 0.1, 0.1), *, files: Sequence[ImageFile] = ()
) -> tuple[str, ...]:
    """Split items by a hash of their identifiers, at shares of train, validation and test with the sum 1.

    The items are ordered by hash and cut at the shares. The counts are exact to one item, and the order of the list and
    the machine do not matter. If items are added, only items next to a cut can change their split. Items with equal
    files stay together, in the split of the first of them in this order. Missing files are not compared.
    """
    order = np.argsort([stable_hash(name) for name in ids], kind="stable")
    cuts = np.rint(np.cumsum(proportions) * len(ids))
    splits = np.empty(len(ids), dtype=object)
    splits[order] = np.asarray(SPLITS, dtype=object)[np.searchsorted(cuts, np.arange(len(ids)), side="right")]
    for group in equal_content(files):
        splits[group] = splits[min(group, key=lambda number: (stable_hash(ids[number]), number))]
    return tuple(splits)


def completed_splits(stated: Sequence[str], ids: Sequence[str], files: Sequence[ImageFile]) -> tuple[str, ...]:
    """Divide the items without a split by ``hashed_splits`` among the splits that no item has, if train is one of them.

    So a folder without splits is divided 8:1:1, and one with splits for the test only is divided 8:1 between train and
    validation. If an item is in train, items without a split are in none.
    """
    if "train" in stated or "" not in stated:
        return tuple(stated)
    shares = [share * (split not in stated) for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True)]
    train, validation, test = (share / sum(shares) for share in shares)
    free = [number for number, split in enumerate(stated) if not split]
    among = [files[n] for n in free if files]
    made = iter(hashed_splits([ids[n] for n in free], (train, validation, test), files=among))
    return tuple(split or next(made) for split in stated)


LEAKAGE = "leakage"
"""The beginning of a line about leakage."""


@runtime_checkable
class _Listed(Protocol):
    @property
    def image_id(self) -> str: ...

    @property
    def split(self) -> str: ...


ListedT = TypeVar("ListedT", bound=_Listed)


def without_leakage(problems: list[str], items: Sequence[ListedT]) -> list[ListedT]:
    """Keep an image that is listed in several splits only in the last of train, validation and test, and report it.

    So a model is never evaluated on an image that it was trained on. Images that are listed twice in the same split, or
    without one, are not changed.
    """
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        listed[item.image_id].add(item.split)
    last = {name: max(where, key=SPLITS.index) for name, where in listed.items() if len(where) > 1 and "" not in where}
    kept = [item for item in items if item.split == last.get(item.image_id, item.split)]
    if last:
        summary = (
            f"{LEAKAGE}: {len(last)} image(s) are listed in several splits and are kept only in the last of train, "
            f"validation and test, without {len(items) - len(kept)} record(s)"
        )
        problems.append(Problem(summary, list(last), fault=True))
    return kept


def equal_files(
    paths: Sequence[ImageFile], splits: Sequence[str], progress: OnProgress | None = None
) -> list[tuple[int, int]]:
    """Find files with equal content in different splits. See ``equal_content``."""
    placed = [number for number, split in enumerate(splits) if split]
    groups = equal_content(
        paths, placed, worth=lambda group: len({splits[number] for number in group}) > 1, progress=progress
    )
    pairs = []
    for group in groups:
        first, *others = sorted(group, key=lambda number: SPLITS.index(splits[number]))
        pairs += [(first, other) for other in others if splits[other] != splits[first]]
    return sorted(pairs)


def shared_files(
    ids: Sequence[str],
    files: Sequence[ImageFile],
    splits: Sequence[str],
    *,
    about: str = "",
    progress: OnProgress | None = None,
) -> tuple[Problem, ...]:
    """Return a line about images of different splits whose files are equal, with a remedy, or none without them.

    Only pairs with an image of the split ``about`` count, or all pairs with "".
    """
    pairs = [
        (one, other)
        for one, other in equal_files(files, splits, progress)
        if not about or about in (splits[one], splits[other])
    ]
    if not pairs:
        return ()
    named = [f"{name} ({split})" for name, split in zip(ids, splits, strict=True)]
    summary = (
        f"{LEAKAGE}: {len(pairs):,} pair(s) of images in two splits are the same: delete one of each, or give both one "
        f"split"
    )
    return (Problem(summary, [f"{named[one]} = {named[other]}" for one, other in pairs], fault=True),)
