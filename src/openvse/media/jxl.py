"""JPEG XL: its size before decoding (ISO/IEC 18181-1), its boxes (ISO/IEC 18181-2), and how it is opened."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from openvse.errors import BadImageError
from openvse.media.formats import MOST_XMP, HeldFacts, ImageFormat, is_installed

if TYPE_CHECKING:
    from PIL import Image

_CODESTREAM, _CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"
_LENGTH_BITS = (9, 13, 18, 30)
_RATIOS = ((1, 1), (1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def boxes_of(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the content of each box of a file. A bare codestream has none."""
    at = len(content) if content.startswith(_CODESTREAM) else 0
    while at + 8 <= len(content):
        size, head = int.from_bytes(content[at : at + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(content[at + 8 : at + 16], "big"), 16
        end = at + size if size else len(content)
        if end < at + head:
            return
        yield content[at + 4 : at + 8], content[at + head : end]
        at = end


def size_of(content: bytes) -> tuple[int, int]:
    """Return width and height of a file, before any turn. Raise BadImageError if it has no codestream."""
    parts = (data[4 * (kind == b"jxlp") :] for kind, data in boxes_of(content) if kind in (b"jxlc", b"jxlp"))
    stream = content if content.startswith(_CODESTREAM) else b"".join(part[:12] for part in parts)
    if len(stream) < 12:
        raise BadImageError("it is a JPEG XL file that is truncated or damaged")
    bits = int.from_bytes(stream[2:12], "little")

    def take(count: int) -> int:
        nonlocal bits
        value, bits = bits & ((1 << count) - 1), bits >> count
        return value

    is_small = take(1)

    def length() -> int:
        return 8 * (take(5) + 1) if is_small else take(_LENGTH_BITS[take(2)]) + 1

    height, ratio = length(), take(3)
    across, down = _RATIOS[ratio]
    return (height * across // down if ratio else length()), height


def _opened(file: Path | io.BytesIO) -> Image.Image:
    """Decode a file with the decoder of the extra ``jxl``, which turns it upright itself."""
    import pillow_jxl  # noqa: F401 - it makes itself known to Pillow
    from PIL import ExifTags, Image

    image = Image.open(file, formats=("JXL",))
    if not getattr(image, "jpeg", False):  # what was made of a JPEG is handed out as that
        image.getexif().pop(ExifTags.Base.Orientation, None)
    return image


def _facts(path: Path) -> HeldFacts:
    from PIL import Image

    boxes, exif = dict(_unpacked(path.read_bytes())), Image.Exif()
    block = boxes.get(b"Exif", b"")
    exif.load(block if block[:2] in (b"II", b"MM") else block[4:])  # some writers leave the offset out
    return exif, boxes.get(b"xml ", b"")


def _unpacked(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the boxes of a file. One of the type brob is another one behind its type, compressed."""
    left = {b"Exif", b"xml "}
    for kind, data in boxes_of(content):
        if kind != b"brob":
            yield kind, data
        elif data[:4] in left and is_installed("brotli"):
            import brotli

            left.remove(data[:4])

            with suppress(brotli.error):
                reader = brotli.Decompressor()
                unpacked = reader.process(data[4:], output_buffer_limit=MOST_XMP)
                if reader.is_finished():
                    yield data[:4], unpacked


def _unread(path: Path) -> str:
    if is_installed("brotli") or b"brob" not in dict(boxes_of(path.read_bytes())):
        return ""
    return "they are compressed: pip install brotli, and index them with --overwrite"


JXL = ImageFormat(
    "JPEG XL",
    "jxl",
    pillow="JXL",
    begins=lambda start: start.startswith((_CODESTREAM, _CONTAINER)),
    opens=_opened,
    size=size_of,
    package="pillow_jxl",
    remedy="JPEG XL needs pillow-jxl-plugin: pip install pillow-jxl-plugin",
    work=1.5,
    facts=_facts,
    unread=_unread,
)
