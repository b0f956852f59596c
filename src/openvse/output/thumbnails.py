"""Small images for web pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from openvse.errors import OpenVSEError
from openvse.output.documents import image_uri

if TYPE_CHECKING:
    from openvse.media.packed import ImageFile

THUMBNAIL_PX = 360
"""The longer side of a thumbnail: twice its size on the page, for dense screens."""


def thumbnail(path: ImageFile) -> str | None:
    """Return an image, or a frame from the middle of a clip, as a small data URI; None if it cannot be read."""
    from openvse.media.videos import read_poster

    try:
        image = read_poster(path)
    except OpenVSEError:  # also where this machine reads no videos: the hits stand beside their scores
        return None
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    return image_uri(image, quality=80)


def exists(path: ImageFile) -> bool:
    """Return whether the file of an image, or the larger file that holds it, is there."""
    return path.exists() if isinstance(path, Path) else path.container.exists()
