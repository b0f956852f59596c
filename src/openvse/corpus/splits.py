"""Names of splits, and a deterministic split for data that has none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from openvse.errors import DataError

SPLITS = ("train", "validation", "test")

Proportions: TypeAlias = tuple[float, float, float]
"""Shares of train, validation and test; they sum to 1."""

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


def stable_hash(text: str) -> int:
    """Return 64 bits that depend only on the text, unlike ``hash``, which differs from run to run."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hashed_splits(ids: Sequence[str], proportions: Proportions) -> tuple[str, ...]:
    """Split items by a hash of their identifiers.

    The items are ordered by hash and cut at the shares: the counts are exact to one item, the order of the list and the
    machine do not matter, and if items are added, only those next to a cut can change their split.

    Args:
        ids: the identifier of each item.
        proportions: shares of train, validation and test.

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
