"""Code that sources of features share: items by identifier, their padding, and batches of them as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int, Shaped

from openvse.errors import StoreError
from openvse.functional import position_mask
from openvse.types import Inputs


def positions_of(
    ids: Sequence[str], known: Mapping[str, int], *, source: str, remedy: str
) -> Int[np.ndarray, "B"]:
    """Return the positions of items.

    Args:
        ids: the items that are asked for.
        known: the position of each item in a source.
        source: the name of the source in messages.
        remedy: what to do about missing items.

    Raises:
        StoreError: some items are missing; the first three are named.
    """
    missing = [item for item in ids if item not in known]
    if missing:
        named = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise StoreError(f"{source} has no features of {len(missing)} of {len(ids)} items: {named}; {remedy}")
    return np.fromiter((known[item] for item in ids), dtype=np.int64, count=len(ids))


def as_inputs(stored: Shaped[np.ndarray, "B N C"], lengths: Int[np.ndarray, "B"]) -> Inputs:
    """Return items in one array, padded with zeros, as ``float32 [B, N, C]`` values and a mask."""
    return Inputs(torch.from_numpy(stored).float(), position_mask(torch.from_numpy(lengths), stored.shape[1]))


def num_real(rows: Shaped[np.ndarray, "N C"]) -> int:
    """Return how many rows an item has without the rows of zeros with which an array pads shorter items."""
    return int(np.flatnonzero(rows.any(axis=1)).max(initial=-1)) + 1
