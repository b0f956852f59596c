"""Images that look alike: pairs with nearly the same perceptual hash, confirmed by the pixels of their contents."""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image, ImageSequence

from openvse.errors import OpenVSEError
from openvse.media.formats import RAW
from openvse.media.images import full_size, has_more_pages, opened_image, read_image
from openvse.media.listing import ImageFile, content_digest
from openvse.media.names import format_of
from openvse.media.videos import is_video, read_poster

BITS = 128
"""The length of the hash."""

_SIDE = 64  # pixels of the small copy that is kept of an image
_QUALITY = 85  # of the copy, as JPEG: 2 kB
_MAX_BITS = 16  # bits in which the hashes of near-duplicates may differ
_MAX_COLOUR = 16.0  # root mean square of the difference on 8 x 8 cells, of 255
_MAX_CELL = 60.0  # largest difference on one of 16 x 16 cells of the content, of 255
_MAX_SHARE = 0.35  # mean difference of the content by its own mean deviation
_GROUND = 12  # levels by which a pixel of the content differs from the uniform ground around it
_STEP = 3  # grey levels by which neighbours must differ to count: flat areas stay equal after compression
_CELLS = 4_000_000  # of the matrix of pairs at a time, 16 MB
_AT_ONCE = 256
_COPIES_OPEN, _FILES_OPEN = 4096, 1024
_MOST_PAGES = 100  # of a file, which are compared
_CLIP = re.compile(rb"ftyp(mp4|isom|iso\d|avc1|qt  |3gp|M4V|MSNV)")  # behind a photograph

Wanted: TypeAlias = Callable[[int, int], bool]


@dataclass(frozen=True)
class Look:
    """The appearance of an image: a difference hash, its colours on 8 x 8 cells, and 64 x 64 pixels of it as JPEG."""

    bits: Bool[np.ndarray, "128"]
    colours: UInt8[np.ndarray, "8 8 3"]
    copy: bytes


@dataclass(frozen=True)
class SeenImage:
    """An image decoded for comparison: its appearance, the hash of its bytes, width times height, and its file."""

    look: Look | None
    digest: bytes = b""
    pixels: int = 0
    reason: str = ""
    file: ImageFile = Path()


def look_of(image: Image.Image) -> Look:
    """Return the appearance of an RGB image. Size, compression and small changes of brightness hardly matter."""
    copy = image.resize((_SIDE, _SIDE), Image.Resampling.BOX, reducing_gap=3.0)
    grey = np.asarray(copy.convert("L").resize((9, 9), Image.Resampling.BOX), dtype=np.int16)
    right, down = grey[:8, :-1] - grey[:8, 1:], grey[:-1, :8] - grey[1:, :8]
    bits = np.concatenate([(right > _STEP).ravel(), (down > _STEP).ravel()])
    colours = np.asarray(copy.resize((8, 8), Image.Resampling.BOX), dtype=np.uint8)
    encoded = io.BytesIO()
    copy.save(encoded, "JPEG", quality=_QUALITY, subsampling=0)
    return Look(bits, colours, encoded.getvalue())


def see(image: ImageFile) -> SeenImage:
    """Decode one image, or the middle frame of a video. See ``see_images``."""
    if isinstance(image, Path) and image.exists() and not image.is_file():
        return SeenImage(None, reason="it is no ordinary file")
    try:
        if is_video(image.name):
            digest, shown = content_digest(image), read_poster(image)
        else:
            content = image.read_bytes()
            digest = hashlib.blake2b(content).digest()
            shown = read_image(content, shorter_side=_SIDE)
    except OSError as error:
        return SeenImage(None, reason=error.strerror or "it cannot be read")
    except OpenVSEError as error:
        return SeenImage(None, reason=str(error).partition(": ")[2] or str(error))
    return SeenImage(look_of(shown), digest, math.prod(full_size(shown)), file=image)


def page_comparison() -> Callable[[ImageFile, ImageFile], bool]:
    """Return a function that says whether two files whose first pages look alike are copies in all they hold.

    They are if both hold one picture, or as many pages that all look alike, or the same bytes.
    """
    pages = lru_cache(_FILES_OPEN)(_pages_of)

    def same(one: ImageFile, other: ImageFile) -> bool:
        (digest, looks), (other_digest, others) = pages(one), pages(other)
        if digest == other_digest or looks is None or others is None or len(looks) != len(others):
            return digest == other_digest
        return all(any(near_pairs(pair)) for pair in zip(looks, others, strict=True))

    return same


def _pages_of(file: ImageFile) -> tuple[bytes, list[Look] | None]:
    """Return the hash of a file and its pages, none for one picture, or None if they cannot be compared."""
    content = b""
    with suppress(OSError, OpenVSEError):  # whoever needs the file says so
        content = b"" if is_video(file.name) or format_of(file.name) is RAW else file.read_bytes()
    digest, has_clip = hashlib.blake2b(content).digest(), _CLIP.search(content, 16) is not None
    if not has_clip and not has_more_pages(content):
        return digest, []
    with suppress(Exception), opened_image(content) as image:  # a page may be damaged
        pages = islice(ImageSequence.Iterator(image), 0 if has_clip else _MOST_PAGES + 1)
        looks = [look_of(read_image(page)) for page in pages]
        return digest, looks if 0 < len(looks) <= _MOST_PAGES else None
    return digest, None


def see_images(images: Sequence[ImageFile], progress: Callable[[int, int], None] | None = None) -> list[SeenImage]:
    """Decode images in several threads, since decoders release Python's lock. Broken ones keep their places."""
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
    seen: Sequence[SeenImage], wanted: Wanted = lambda one, other: True
) -> tuple[list[tuple[int, int]], Iterator[tuple[int, int]]]:
    """Return pairs of positions of images with equal bytes, and of other images that look alike in all pages.

    If several images have equal bytes, the first is in a pair with each of the others, and only the first is compared
    with other images. Broken images are in no pair.
    """
    first: dict[bytes, int] = {}
    same, looks = [], {}
    for number, image in enumerate(seen):
        if image.look is None:
            continue
        if (one := first.setdefault(image.digest, number)) == number:
            looks[number] = image.look
        else:
            same.append((one, number))
    numbers = list(looks)
    alike = near_pairs(list(looks.values()), lambda one, other: wanted(numbers[one], numbers[other]))
    pairs, same_pages = ((numbers[one], numbers[other]) for one, other in alike), page_comparison()
    return same, (pair for pair in pairs if same_pages(*(seen[number].file for number in pair)))


def near_pairs(looks: Sequence[Look], wanted: Wanted = lambda one, other: True) -> Iterator[tuple[int, int]]:
    """Yield the pairs of images that look alike: positions, sorted, with the earlier position first.

    All pairs are compared by hash and colours, as blocks of a matrix product, so memory is bounded. Pairs that are
    nearly the same are compared by their pixels, inside the uniform ground that may surround both. Most of a drawing on
    a white page is white, which carries no information. They must agree in the mean, by how much the content itself
    varies, and on every one of 16 x 16 cells, as two signs may differ in one place alone. ``wanted`` is called when the
    turn of a pair comes, so a caller that groups its pairs leaves out most pairs of a burst.
    """
    if not looks:
        return
    signs = np.stack([look.bits for look in looks]).astype(np.float32) * 2 - 1
    colours = np.stack([look.colours.ravel() for look in looks]).astype(np.int16)
    for rows, columns in _candidates(signs):
        difference = colours[rows].astype(np.float32) - colours[columns]
        near = np.sqrt((difference**2).mean(axis=1)) <= _MAX_COLOUR
        for pair in zip(rows[near].tolist(), columns[near].tolist(), strict=True):
            if wanted(*pair) and _agree(*(_opened(looks[number].copy) for number in pair)):
                yield pair


_Box: TypeAlias = tuple[int, int, int, int]


@lru_cache(_COPIES_OPEN)
def _opened(copy: bytes) -> tuple[Image.Image, _Box | None]:
    """Return a small copy, and the box of its content: left, top, right, bottom, or None if all is ground."""
    image = Image.open(io.BytesIO(copy))
    image.load()
    pixels = np.asarray(image, np.int16)
    ground = np.median(np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]), axis=0)
    content = (np.abs(pixels - ground) > _GROUND).any(axis=2)
    rows, columns = np.flatnonzero(content.any(axis=1)), np.flatnonzero(content.any(axis=0))
    if not len(rows):
        return image, None
    return image, (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def _agree(one: tuple[Image.Image, _Box | None], other: tuple[Image.Image, _Box | None]) -> bool:
    """Return whether two small copies show the same, within the box that holds the content of both.

    Blank images never match, because they may be white icons on a transparent ground.
    """
    (_, first), (_, second) = one, other
    if first is None or second is None:
        return False
    left, top = (min(pair) for pair in zip(first[:2], second[:2], strict=True))
    right, bottom = (max(pair) for pair in zip(first[2:], second[2:], strict=True))
    shown = (image.resize((32, 32), Image.Resampling.BOX, (left, top, right, bottom)) for image, _ in (one, other))
    both = np.stack([np.asarray(image, np.float32) for image in shown])
    cells = both.reshape(2, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    if np.abs(cells[0] - cells[1]).max() > _MAX_CELL:
        return False
    own = both - both.mean(axis=(1, 2), keepdims=True)
    varies = max(1.0, float(np.abs(own).mean(axis=(1, 2, 3)).min()))
    return float(np.abs(own[0] - own[1]).mean()) <= _MAX_SHARE * varies


def _candidates(signs: Float[np.ndarray, "I 128"]) -> Iterator[tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]]:
    """Yield pairs whose hashes differ in few bits: the product of sign vectors that differ in d is 128 - 2 d."""
    block = max(1, _CELLS // len(signs))
    for start in range(0, len(signs), block):
        alike = signs[start : start + block] @ signs[start:].T >= BITS - 2 * _MAX_BITS
        rows, columns = np.nonzero(np.triu(alike, k=1))
        for first in range(0, len(rows), _CELLS // BITS):
            part = slice(first, first + _CELLS // BITS)
            yield rows[part] + start, columns[part] + start
