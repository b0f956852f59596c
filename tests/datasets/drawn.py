"""Small images that differ, as the bytes of a file."""

from __future__ import annotations

import io

from PIL import Image

COLOURS = ("red", "green", "blue", "black", "white", "orange", "purple", "grey")


def drawn(number: int, kind: str = "PNG") -> bytes:
    """Return a file of one colour; each number up to 7 has its own."""
    file = io.BytesIO()
    Image.new("RGB", (16, 12), COLOURS[number]).save(file, kind)
    return file.getvalue()
