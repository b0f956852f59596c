"""The formats of images: what is known of each before a file is read, and how it is opened. See ``names``.

The size of JPEG XL follows ISO/IEC 18181-1, and its boxes ISO/IEC 18181-2, as those of JPEG 2000. No decoder is
imported before a file needs it.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from openvse.errors import BadImageError

if TYPE_CHECKING:
    from PIL import Image

HeldFacts: TypeAlias = "tuple[Image.Exif, bytes | str]"
"""What a file holds about its picture: its EXIF and its packet of XMP."""

MOST_XMP = 8_000_000
"""The longest packet of XMP that is read."""

_MOST_BOXES = 200_000  # looked at in a file
_TURNS = {3: 3, 5: 8, 6: 6}  # how LibRaw calls the orientations of EXIF
_CODESTREAM, _CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"
_LENGTH_BITS = (9, 13, 18, 30)
_RATIOS = ((1, 1), (1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


@cache
def is_installed(package: str) -> bool:
    """Return whether a package that decodes is there. It is not imported."""
    return find_spec(package) is not None


@dataclass(frozen=True, eq=False)
class ImageFormat:
    """A format of images, which is registered in ``IMAGE_FORMATS`` under each of its suffixes.

    Attributes:
        title: its name in messages.
        suffixes: the endings of its files, between blanks.
        pillow: Pillow's name of it, if Pillow opens it.
        begins: whether a file is one, by its first bytes. None where only its name can tell.
        media_type: under which browsers show it, or "" if not all do.
        opens: opens a file. It raises any error for a damaged one, and decodes nothing unless it has ``size``.
        size: width and height, read from the content before ``opens`` decodes it.
        package: the module that decodes it, if Pillow alone does not.
        remedy: what to do where that module, or a version of Pillow, is missing.
        work: the number of pixels of a plain image that take as long to decode as one of its pixels.
        facts: what a file holds, if Pillow cannot tell without decoding. None takes what Pillow has opened.
        unread: why the facts of a file are not read, and what to do, or "".
    """

    title: str
    suffixes: str
    pillow: str = ""
    begins: Callable[[bytes], object] | None = None
    media_type: str = ""
    opens: Callable[[Path | io.BytesIO], Image.Image] | None = None
    size: Callable[[bytes], tuple[int, int]] | None = None
    package: str = ""
    remedy: str = ""
    work: float = 1.0
    facts: Callable[[Path], HeldFacts | None] | None = None
    unread: Callable[[Path], str] | None = None

    @property
    def is_read(self) -> bool:
        """Whether its files are read, as the package for it is installed."""
        return not self.package or is_installed(self.package)

    def __call__(self, file: Path | io.BytesIO) -> Image.Image:
        """Open a file with the format's own decoder. Raise BadImageError if it is missing."""
        if self.opens is None or not self.is_read:
            raise BadImageError(self.remedy)
        return self.opens(file)


def plain_message(error: Exception) -> str:
    """Return the message of an error in one line. LibRaw's messages are bytes."""
    held = error.args[0] if error.args else ""
    message = held if isinstance(held, bytes) else getattr(error, "strerror", None) or str(error)
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
    return " ".join(text.split()) or type(error).__name__


def _is_heif(start: bytes) -> bool:
    """Return whether a file begins like HEIC. AVIF has the same container and another brand (ISO/IEC 23008-12)."""
    brands = start[8 : int.from_bytes(start[:4], "big")] if start[4:8] == b"ftyp" else b""
    return b"avif" not in brands and any(brand in brands for brand in (b"heic", b"heix", b"mif1", b"msf1"))


def _opened_heif(file: Path | io.BytesIO) -> Image.Image:
    """Open a HEIC file with the decoder of the extra ``heif``, which turns it upright itself."""
    import pillow_heif
    from PIL import Image, UnidentifiedImageError

    pillow_heif.register_heif_opener()
    try:
        return Image.open(file, formats=("HEIF",))
    except UnidentifiedImageError:
        raise BadImageError("it is a HEIC file that is truncated or damaged") from None


def _opened_raw(file: Path | io.BytesIO) -> Image.Image:
    """Open the largest preview in a raw file of a camera, with LibRaw through the extra ``raw``."""
    import rawpy
    from PIL import ExifTags, Image

    try:
        with rawpy.imread(str(file) if isinstance(file, Path) else file) as raw:
            preview, flip = raw.extract_thumb(), raw.sizes.flip
    except rawpy.LibRawError as error:
        raise BadImageError(f"it holds no preview that we read ({plain_message(error)}): export JPEG") from None
    if preview.format == rawpy.ThumbFormat.JPEG:
        image: Image.Image = Image.open(io.BytesIO(preview.data), formats=("JPEG",))
    else:
        image = Image.fromarray(preview.data)
    image.getexif().setdefault(ExifTags.Base.Orientation, _TURNS.get(flip, 1))
    return image


def _held_in_raw(path: Path) -> HeldFacts | None:
    """Return what a raw file says as a TIFF, which most are. Nothing stands for what its preview says."""
    from PIL import ExifTags, Image

    exif = Image.Exif()
    with path.open("rb") as file, suppress(SyntaxError):
        exif.load_from_fp(file)
        for part in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            exif.get_ifd(part)  # which is kept, while the file is open
        return (exif, exif.get(ExifTags.Base.XMLPacket, b"")) if exif else None
    return None


def _like(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(pattern, re.DOTALL).match


def boxes_of(file: BinaryIO, most: int = sys.maxsize) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type of each box of a JPEG XL or JPEG 2000 and so many bytes of it. A bare codestream has none."""
    at, end = 0, file.seek(0, io.SEEK_END)
    while at + 8 <= end:
        file.seek(at)
        start, head = file.read(8), 8
        if at == 0 and start.startswith(_CODESTREAM):
            return
        size = int.from_bytes(start[:4], "big")
        if size == 1:
            size, head = int.from_bytes(file.read(8), "big"), 16
        after = min(at + size, end) if size else end
        if after < at + head:
            return
        yield start[4:], file.read(min(after - at - head, most))
        at = after


def boxes_in(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the boxes of a file, each as far as facts may reach."""
    with path.open("rb") as file:
        yield from islice(boxes_of(file, MOST_XMP + 1), _MOST_BOXES)


def size_of(content: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG XL, before any turn. Raise BadImageError if it has no codestream."""
    file = io.BytesIO(content)
    parts = (data[4 * (kind == b"jxlp") :] for kind, data in boxes_of(file, 16) if kind in (b"jxlc", b"jxlp"))
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


def _opened_jxl(file: Path | io.BytesIO) -> Image.Image:
    """Decode a file with the decoder of the extra ``jxl``, which turns it upright itself."""
    import pillow_jxl  # noqa: F401 - it makes itself known to Pillow
    from PIL import ExifTags, Image

    image = Image.open(file, formats=("JXL",))
    if not getattr(image, "jpeg", False):  # what was made of a JPEG is handed out as that
        image.getexif().pop(ExifTags.Base.Orientation, None)
    return image


def _held_in_jxl(path: Path) -> HeldFacts:
    from PIL import Image

    boxes, exif = dict(_unpacked(path)), Image.Exif()
    block = boxes.get(b"Exif", b"")
    exif.load(block if block[:2] in (b"II", b"MM") else block[4:])  # some writers leave the offset out
    return exif, boxes.get(b"xml ", b"")


def _unpacked(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the boxes of a file that hold facts. One of the type brob is another one behind its type, compressed."""
    left = {b"Exif", b"xml "}
    for kind, data in boxes_in(path):
        if kind in (b"Exif", b"xml "):
            yield kind, data
        elif kind == b"brob" and data[:4] in left and is_installed("brotli"):
            import brotli

            left.remove(data[:4])
            with suppress(brotli.error):
                reader = brotli.Decompressor()
                unpacked = reader.process(data[4:], output_buffer_limit=MOST_XMP)
                if reader.is_finished():
                    yield data[:4], unpacked


def _unread_jxl(path: Path) -> str:
    if is_installed("brotli") or all(kind != b"brob" for kind, _ in boxes_in(path)):
        return ""
    return "they are compressed: pip install brotli, and index them with --overwrite"


HEIC = ImageFormat(
    "HEIC",
    "heic heif hif",
    pillow="HEIF",
    begins=_is_heif,
    opens=_opened_heif,
    package="pillow_heif",
    remedy="HEIC needs pillow-heif: pip install pillow-heif",
    work=1.5,
)
JXL = ImageFormat(
    "JPEG XL",
    "jxl",
    pillow="JXL",
    begins=lambda start: start.startswith((_CODESTREAM, _CONTAINER)),
    opens=_opened_jxl,
    size=size_of,
    package="pillow_jxl",
    remedy="JPEG XL needs pillow-jxl-plugin: pip install pillow-jxl-plugin",
    work=1.5,
    facts=_held_in_jxl,
    unread=_unread_jxl,
)
RAW = ImageFormat(
    "camera raw",
    "3fr arw cr2 cr3 crw dcr dcs dng erf fff gpr iiq k25 kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf srw "
    "x3f",
    opens=_opened_raw,
    package="rawpy",
    remedy="raw files of cameras need rawpy, which reads their previews: pip install rawpy, or export JPEG",
    facts=_held_in_raw,
)
# Pillow would hand an EPS file to Ghostscript and reads many rare formats: untrusted files are offered only to
# the decoders of common formats.
_AVIF = "AVIF needs Pillow 11.3 or newer: pip install --upgrade pillow"
OF_PILLOW = (
    ImageFormat("JPEG", "jpg jpeg jpe jfif jfi jif mpo pjp pjpeg", "JPEG", _like(rb"\xff\xd8\xff"), "image/jpeg"),
    ImageFormat("PNG", "png apng", "PNG", _like(rb"\x89PNG\r\n"), "image/png"),
    ImageFormat("GIF", "gif", "GIF", _like(rb"GIF8[79]a"), "image/gif"),
    ImageFormat("BMP", "bmp", "BMP", _like(rb"BM....\0\0\0\0"), "image/bmp"),
    ImageFormat("PPM", "ppm pbm pgm pnm", "PPM"),
    ImageFormat("TIFF", "tif tiff", "TIFF", _like(rb"II\*\0|MM\0\*")),
    ImageFormat("WebP", "webp", "WEBP", _like(rb"RIFF....WEBP"), "image/webp"),
    ImageFormat("AVIF", "avif avifs", "AVIF", _like(rb"....ftyp.{0,52}avif"), "image/avif", remedy=_AVIF, work=1.5),
    ImageFormat("JPEG 2000", "jp2 j2c j2k jpc jpf jpx", "JPEG2000", _like(rb"\0\0\0\x0cjP  "), work=4.0),
)
