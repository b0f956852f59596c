"""Small images for the page."""

from __future__ import annotations

import io
from pathlib import Path

from openvse.errors import OpenVSEError
from openvse.media.videos import read_poster
from openvse.output.thumbnails import THUMBNAIL_PX
from openvse.serving.catalog import MissingError

LARGE_PX = 1280
"""The longer side of the image in the panel of the page."""


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
