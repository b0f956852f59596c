"""Small images for web pages."""

from __future__ import annotations

from openvse.errors import OpenVSEError
from openvse.media.listing import ImageFile
from openvse.media.segments import ClipSegment
from openvse.media.videos import read_poster
from openvse.output.documents import image_uri

THUMBNAIL_PX = 360
"""The longer side of a thumbnail: twice its size on the page, for dense screens."""


def thumbnail_uri(path: ImageFile | ClipSegment, *, side: int = THUMBNAIL_PX) -> str | None:
    """Return an image, or the middle frame of a clip or segment, as a small data URI, or None if it cannot be read."""
    try:
        image = read_poster(path, shorter_side=side)
    except OpenVSEError:  # also where this machine reads no videos: the hits stand beside their scores
        return None
    image.thumbnail((side, side))
    return image_uri(image, quality=80)
