"""Resizing at a bounded cost for images of any shape: unseen parts are cut off before the rest is enlarged.

A file of 400 bytes may hold an image of 1 x 65,000 pixels. If its shorter side is enlarged to 224 pixels, the whole
image takes 13 GB, of which a network sees a square. Images of ordinary shapes are resized whole, and then cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from PIL.Image import Image, Resampling

LONG = 16
"""An image is long if one side is more than so many times the other."""

_SIDE = 1 << 16  # pixels; a filter that shrinks a side keeps 32 bytes for each of its pixels
_GAP = 8  # a longer side is first shrunk, by means of whole blocks, to this multiple of the wanted length or less
_SUPPORT = 3  # pixels that the widest filter, Lanczos, sees to either side


def is_long(image: Image) -> bool:
    """Return whether one side of an image is more than ``LONG`` times the other."""
    return max(image.size) > LONG * min(image.size)


def stretched(image: Image, size: tuple[int, int], resample: int = Resampling.BICUBIC) -> Image:
    """Resize a whole image.

    Pillow resizes along the rows first. A long upright image, whose rows may become hundreds of times as wide, is first
    resized along its columns.
    """
    blocks = [1 if side <= _SIDE else max(1, side // (_GAP * new)) for side, new in zip(image.size, size, strict=True)]
    if max(blocks) > 1:
        image = image.reduce((blocks[0], blocks[1]))
    if image.height > LONG * image.width:
        image = image.resize((image.width, size[1]), Resampling(resample))
    return image.resize(size, Resampling(resample))


def resized_middle(image: Image, shortest: int, crop: tuple[int, int], resample: int, *, rounds: bool = False) -> Image:
    """Resize an image to its shortest side in pixels, keeping its aspect ratio, and cut the middle out.

    The longer side is rounded down, and so is the place of the crop unless it ``rounds``. Beyond the image it is black.
    """
    short = min(image.size)
    wide, high = (shortest if side == short else int(shortest * side / short) for side in image.size)
    free = (wide - crop[0]) / 2, (high - crop[1]) / 2
    left, top = (round(each) if rounds else math.floor(each) for each in free)
    if not is_long(image):
        resized = image.resize((wide, high), Resampling(resample))
        return resized.crop((left, top, left + crop[0], top + crop[1]))
    x, y = _seen(image.width, wide, left, crop[0]), _seen(image.height, high, top, crop[1])
    part = image.crop((x.first, y.first, x.last, y.last))
    box = x.start, y.start, x.end, y.end
    resized = part.resize((x.pixels, y.pixels), Resampling(resample), box=box)
    left, top = min(left, 0), min(top, 0)  # the crop may begin before the image
    return resized.crop((left, top, left + crop[0], top + crop[1]))


def cut_long(image: Image) -> Image:
    """Return the middle of a long image, ``LONG`` times as long as wide, or any other image unchanged."""
    most = LONG * min(image.size)
    left, top = (max(0, (side - most) // 2) for side in image.size)
    box = left, top, left + min(image.width, most), top + min(image.height, most)
    return image.crop(box) if is_long(image) else image


class _Seen(NamedTuple):
    """The part of a resized side that a crop shows."""

    first: int
    last: int
    start: float
    end: float
    pixels: int


def _seen(side: int, new: int, place: int, length: int) -> _Seen:
    """Return the part of a side that a crop shows."""
    begin, stop, scale = max(0, place), min(new, place + length), side / new
    start, end = begin * scale, min(stop * scale, float(side))
    margin = math.ceil(_SUPPORT * max(1.0, scale)) + 1
    first, last = max(0, math.floor(start) - margin), min(side, math.ceil(end) + margin)
    return _Seen(first, last, start - first, end - first, stop - begin)


def pixel_windows(
    windows: tuple[tuple[int, float], ...], width: int, height: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the windows in whole pixels. Windows of one grid have the same size, at least one pixel wide and high."""
    for count, share in windows:
        wide, high = max(1, round(share * width)), max(1, round(share * height))
        for row in window_places(count):
            top = round(row * (height - high))
            for column in window_places(count):
                left = round(column * (width - wide))
                yield left, top, left + wide, top + high


def window_places(count: int) -> list[float]:
    """Return the starts of the windows of a grid, from 0 (the edge) to 1 (the last place). A single one is at 1/2."""
    return [0.5] if count == 1 else [place / (count - 1) for place in range(count)]
