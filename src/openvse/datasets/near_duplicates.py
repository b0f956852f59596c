"""Images that look alike: a small perceptual hash of each, the pairs with nearly the same hash, and their groups."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image

from openvse.errors import OpenVSEError
from openvse.media.images import read_image
from openvse.media.packed import ImageFile
from openvse.media.videos import is_video, read_poster

BITS = 128
"""The length of the hash."""

_MAX_BITS = 10  # bits in which near-duplicates may differ
_MAX_COLOUR = 10.0  # root mean square of the difference of small copies, of 255
_STEP = 3  # grey levels by which neighbours must differ to count: flat areas stay equal after compression
_CELLS = 4_000_000  # of the matrix of pairs at a time, 16 MB
_AT_ONCE = 256


@dataclass(frozen=True)
class Look:
    """The appearance of an image.

    Attributes:
        bits: whether the image becomes darker to the right, and downwards, at 8 x 8 places each (a difference hash).
        colours: the image on 8 x 8 cells.
    """

    bits: Bool[np.ndarray, "128"]
    colours: UInt8[np.ndarray, "8 8 3"]


@dataclass(frozen=True)
class SeenImage:
    """An image that was decoded to be compared.

    Attributes:
        look: its appearance; None if it is broken.
        digest: the hash of its bytes; empty if it is broken.
        pixels: width times height; 0 if it is broken.
        reason: why it is broken.
    """

    look: Look | None
    digest: bytes = b""
    pixels: int = 0
    reason: str = ""


def look_of(image: Image.Image) -> Look:
    """Return the appearance of an RGB image; size, compression and small changes of brightness hardly matter."""
    grey = np.asarray(
        image.convert("L").resize((9, 9), Image.Resampling.BOX, reducing_gap=3.0), dtype=np.int16
    )
    right, down = grey[:8, :-1] - grey[:8, 1:], grey[:-1, :8] - grey[1:, :8]
    bits = np.concatenate([(right > _STEP).ravel(), (down > _STEP).ravel()])
    colours = np.asarray(image.resize((8, 8), Image.Resampling.BOX, reducing_gap=3.0), dtype=np.uint8)
    return Look(bits, colours)


def see(image: ImageFile) -> SeenImage:
    """Decode one image, or the middle frame of a video; see ``see_images``."""
    try:
        content = image.read_bytes()
        shown = read_poster(image) if is_video(image.name) else read_image(content)
    except OSError as error:
        return SeenImage(None, reason=error.strerror or "it cannot be read")
    except OpenVSEError as error:
        return SeenImage(None, reason=str(error).partition(": ")[2] or str(error))
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return SeenImage(look_of(shown), digest, shown.width * shown.height)


def see_images(
    images: Sequence[ImageFile], progress: Callable[[int, int], None] | None = None
) -> list[SeenImage]:
    """Decode images in several threads, since decoders release Python's lock; broken ones keep their places.

    Args:
        images: the images; of a video, its middle frame is taken.
        progress: called after each image with how many are done, and how many there are.
    """
    seen: list[SeenImage] = []
    cpus = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    with ThreadPoolExecutor(cpus) as pool:
        for start in range(0, len(images), _AT_ONCE):
            for image in pool.map(see, images[start : start + _AT_ONCE]):
                seen.append(image)
                if progress is not None:
                    progress(len(seen), len(images))
    return seen


def duplicate_pairs(
    seen: Sequence[SeenImage],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return pairs of positions of images with equal bytes, and of other images that look alike.

    Of images with equal bytes, the first is in a pair with each of the others, and only the first is compared with
    other images. Broken images are in no pair.
    """
    first: dict[bytes, int] = {}
    same, looks = [], {}
    for number, image in enumerate(seen):
        if image.look is None:
            continue
        one = first.setdefault(image.digest, number)
        if one == number:
            looks[number] = image.look
        else:
            same.append((one, number))
    numbers = list(looks)
    alike = near_pairs(list(looks.values()))
    return same, [(numbers[one], numbers[other]) for one, other in alike]


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


def groups_of(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Join pairs that share a position into groups of two or more, in the order of their first positions.

    Args:
        count: the number of positions.
        pairs: pairs of positions.
    """
    parent = list(range(count))

    def top(place: int) -> int:
        while parent[place] != place:
            parent[place] = place = parent[parent[place]]
        return place

    for first, second in pairs:
        parent[top(second)] = top(first)
    members: dict[int, list[int]] = {}
    for place in range(count):
        members.setdefault(top(place), []).append(place)
    return [group for group in members.values() if len(group) > 1]


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
