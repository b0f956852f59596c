"""Small images, made once and kept in a bounded part of the memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from openvse.errors import OpenVSEError
from openvse.media.videos import read_poster
from openvse.output.thumbnails import THUMBNAIL_PX
from openvse.serving.catalog import MissingError

LARGE_PX = 1280
"""The longer side of the image in the panel of the page."""


class Kept:
    """Bytes by name; those that were not used for longest are forgotten when there are too many.

    Args:
        limit: the largest number of bytes in all.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many bytes are kept."""
        return self._bytes

    def get(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what is kept under a name, or make it; two threads may make the same."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        made = make()
        with self._lock:
            if name not in self._kept:
                self._kept[name] = made
                self._bytes += len(made)
            while self._bytes > self._limit:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone)
        return made


def small_image(path: Path, *, large: bool = False) -> bytes:
    """Return an image, or a frame from the middle of a clip, as a small WebP.

    Args:
        path: the file.
        large: whether it is for the panel of the page; otherwise it is for the grid.

    Raises:
        MissingError: the file cannot be read as an image.
    """
    try:
        image = read_poster(path)
    except OpenVSEError as error:
        raise MissingError(
            f"{path.name} cannot be shown: it is gone, damaged or of an unknown kind"
        ) from error
    side = LARGE_PX if large else THUMBNAIL_PX
    image.thumbnail((side, side))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=82 if large else 78)
    return encoded.getvalue()
