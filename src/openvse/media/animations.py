"""The times at which frames of an animated GIF or WebP appear, read from the file's blocks without decoding pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from PIL import Image

from openvse.errors import BadVideoError

_TRUNCATED = "it is truncated: get the whole file again"
_HASTY, _USUAL = (
    0.01,
    0.1,
)  # browsers show a frame of 10 ms or less for 100 ms, as authors have come to expect


def frame_starts(content: bytes) -> tuple[Float[np.ndarray, "T"], float]:
    """Return the seconds at which each frame appears, and at which the last one disappears.

    Sources: the GIF89a specification (graphic control extensions hold hundredths of a second) and the WebP
    container specification (``ANMF`` chunks hold milliseconds). An image without animation is one frame.

    Args:
        content: the whole file.

    Raises:
        BadVideoError: the file ends within a block, or holds no frame.
    """
    read = _gif_seconds if content[:3] == b"GIF" else _webp_seconds
    try:
        return _starts(list(read(content)))
    except IndexError:
        raise BadVideoError(_TRUNCATED) from None


def opened_starts(image: Image.Image) -> tuple[Float[np.ndarray, "T"], float]:
    """Return the same for an animation that is already open in Pillow; it decodes every frame once."""
    seconds = []
    for position in range(getattr(image, "n_frames", 1)):
        image.seek(position)
        image.load()
        seconds.append(float(image.info.get("duration", 0)) / 1000)
    return _starts(seconds)


def _starts(seconds: list[float]) -> tuple[Float[np.ndarray, "T"], float]:
    if not seconds:
        raise BadVideoError("it has no frames")
    lengths = np.array([_USUAL if length <= _HASTY else length for length in seconds])
    ends = lengths.cumsum()
    return ends - lengths, float(ends[-1])


def _gif_seconds(content: bytes) -> Iterator[float]:
    """Yield the duration of each frame of a GIF in seconds."""
    at = 13 + _colours(content[10])
    delay = 0.0
    while at < len(content) and content[at] != 0x3B:  # many files lack the trailer
        if content[at] == 0x21:
            if content[at + 1] == 0xF9:
                delay = int.from_bytes(content[at + 4 : at + 6], "little") / 100
            at = _skip_blocks(content, at + 2)
        elif content[at] == 0x2C:
            at = _skip_blocks(content, at + 11 + _colours(content[at + 9]))
            yield delay
            delay = 0.0
        else:
            raise BadVideoError(f"it is damaged (no GIF block begins at byte {at})")


def _colours(flags: int) -> int:
    """Return the size in bytes of the colour table that follows such flags."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(content: bytes, at: int) -> int:
    """Return the position after a run of sub-blocks, each preceded by its length; IndexError beyond the end."""
    while size := content[at]:
        at += size + 1
    return at + 1


def _webp_seconds(content: bytes) -> Iterator[float]:
    """Yield the duration of each frame of a WebP in seconds."""
    if len(content) < 8 + int.from_bytes(content[4:8], "little"):
        raise BadVideoError(_TRUNCATED)
    at = 12
    animated = False
    while at + 8 <= len(content):
        if content[at : at + 4] == b"ANMF":
            animated = True
            yield int.from_bytes(content[at + 20 : at + 23], "little") / 1000
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    if not animated:
        yield 0.0
