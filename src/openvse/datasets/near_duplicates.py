"""Images that look alike: a small perceptual hash, and all pairs with nearly the same hash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image

BITS = 128
"""The length of the hash."""

_MAX_BITS = 10  # bits in which near-duplicates may differ
_MAX_COLOUR = 10.0  # root mean square of the difference of small copies, of 255
_STEP = 3  # grey levels by which neighbours must differ to count: flat areas stay equal after compression
_CELLS = 4_000_000  # of the matrix of pairs at a time, 16 MB


@dataclass(frozen=True)
class Look:
    """The appearance of an image.

    Attributes:
        bits: whether the image becomes darker to the right, and downwards, at 8 x 8 places each (a difference hash).
        colours: the image on 8 x 8 cells.
    """

    bits: Bool[np.ndarray, "128"]
    colours: UInt8[np.ndarray, "8 8 3"]


def look_of(image: Image.Image) -> Look:
    """Return the appearance of an RGB image; size, compression and small changes of brightness hardly matter."""
    grey = np.asarray(
        image.convert("L").resize((9, 9), Image.Resampling.BOX, reducing_gap=3.0), dtype=np.int16
    )
    right, down = grey[:8, :-1] - grey[:8, 1:], grey[:-1, :8] - grey[1:, :8]
    bits = np.concatenate([(right > _STEP).ravel(), (down > _STEP).ravel()])
    colours = np.asarray(image.resize((8, 8), Image.Resampling.BOX, reducing_gap=3.0), dtype=np.uint8)
    return Look(bits, colours)


def near_pairs(looks: Sequence[Look], limit: int = 100_000) -> list[tuple[int, int]]:
    """Return the pairs of images that look alike: nearly the same hash, nearly the same colours.

    All pairs are compared, as blocks of a matrix product, so memory is bounded.

    Args:
        looks: the appearance of each image.
        limit: the number of pairs after which to stop.

    Returns:
        Pairs of positions, sorted, with the earlier position first.
    """
    if not looks:
        return []
    signs = np.stack([look.bits for look in looks]).astype(np.float32) * 2 - 1
    colours = np.stack([look.colours.ravel() for look in looks]).astype(np.int16)
    pairs: list[tuple[int, int]] = []
    for rows, columns in _candidates(signs):
        difference = colours[rows].astype(np.float32) - colours[columns]
        near = np.sqrt((difference**2).mean(axis=1)) <= _MAX_COLOUR
        pairs += zip(rows[near].tolist(), columns[near].tolist(), strict=True)
        if len(pairs) >= limit:
            break
    return sorted(pairs)[:limit]


def _candidates(
    signs: Float[np.ndarray, "I 128"],
) -> Iterator[tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]]:
    """Yield pairs whose hashes differ in few bits: the product of sign vectors that differ in d is 128 - 2 d."""
    block = max(1, _CELLS // len(signs))
    for start in range(0, len(signs), block):
        alike = signs[start : start + block] @ signs[start:].T >= BITS - 2 * _MAX_BITS
        rows, columns = np.nonzero(np.triu(alike, k=1))
        for first in range(0, len(rows), _CELLS // BITS):
            part = slice(first, first + _CELLS // BITS)
            yield rows[part] + start, columns[part] + start
