"""Names of files: the kind of file that a name indicates, and the printed form of a name with odd characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from openvse.errors import OpenVSEError
from openvse.media.formats import HEIC, JXL, OF_PILLOW, RAW, ImageFormat
from openvse.registry import Registry

if TYPE_CHECKING:
    from PIL import Image

PIXELS_VARIABLE = "OPENVSE_MAX_PIXELS"
"""The environment variable with the largest number of pixels of an image, also for processes that this one starts."""

_VIDEO = re.compile(
    r"[^.].*\.(3g[2p]|asf|avi|divx|f4v|flv|insv|lrv|m[124]v|mk3d|mkv|mov|mp4|mp(?:~[23])?|mpe|mpe?g|mts|mv|m2ts?|og[mv]|qt|tod|ts|vob|"
    r"webm|wmv)",
    re.IGNORECASE,
)
BUILT_IN = (*OF_PILLOW, HEIC, JXL, RAW)
"""The formats that openvse reads."""

IMAGE_FORMATS: Registry[Image.Image] = Registry(
    "image format", {suffix: each for each in BUILT_IN for suffix in each.suffixes.split()}
)
"""The formats of images by each of their suffixes: ``IMAGE_FORMATS.add("qoi", QOI)`` adds one."""

_VECTOR = "vector graphics are not read, export PNG"
_LAYERS = "files with layers are not read, export PNG"
_RARE = "rare formats of images are not read, convert to PNG or JPEG"
# Other files that people take for images or clips: the kind, the suffixes, and what to do.
_FOREIGN = {
    "SVG": ("svg svgz", _VECTOR),
    "EPS": ("eps ps ai", _VECTOR),
    "of a vector format": ("cdr emf odg wmf", _VECTOR),
    "PDF": ("pdf", "documents are not read, export the pages as PNG"),
    "PSD": ("psd psb", _LAYERS),
    "of a layered format": ("afphoto kra ora pdn xcf", _LAYERS),
    "JPEG XR": ("jxr hdp wdp", _RARE),
    "TGA": ("tga vda icb vst", _RARE),
    "ICO": ("ico cur icns", _RARE),
    "of a rare image format": (
        "bpg dcm dds dib djv djvu exr fits flif hdr jls jng mng pcx pfm pict qoi ras sgi wbmp xbm xpm",
        _RARE,
    ),
    "of a rare video format": (
        "amv braw dv mxf r3d rm rmvb wtv",
        "rare formats of videos are not read, convert to MP4",
    ),
}
_KIND_OF = {suffix: kind for kind, (suffixes, _) in _FOREIGN.items() for suffix in suffixes.split()}
_ODD = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, undecodable bytes, line separators
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # they let text read backwards


def known_formats() -> Iterator[ImageFormat]:
    """Yield all formats, the built-in ones first. The packages of others are imported when their turn comes."""
    yield from BUILT_IN
    yield from dict.fromkeys(each for suffix in IMAGE_FORMATS if (each := _format(suffix)) not in BUILT_IN)


def format_of(name: str) -> ImageFormat | None:
    """Return the format of images to which the suffix of a name belongs, whether or not it is read, or None."""
    stem, _, suffix = name.lower().rpartition(".")
    return _format(suffix) if stem and suffix.isalnum() and suffix in IMAGE_FORMATS else None


def _format(suffix: str) -> ImageFormat:
    found = IMAGE_FORMATS.get(suffix)
    if not isinstance(found, ImageFormat):
        raise OpenVSEError(f"image format {suffix!r} is {found!r}: give an ImageFormat with a title and suffixes")
    return found


def is_image(name: str) -> bool:
    """Return whether a name belongs to a readable image file. Animations are images."""
    known = None if name.startswith(".") or "\n" in name else format_of(name)
    return known is not None and known.is_read


def is_video_name(name: str) -> bool:
    """Return whether a name belongs to a video file."""
    return _VIDEO.fullmatch(name) is not None


def foreign_kind(name: str) -> str:
    """Return the kind of a file that looks like an image and cannot be read, such as "HEIC" or "SVG", or ""."""
    if (known := format_of(name)) is not None:
        return "" if known.is_read else known.title
    stem, _, suffix = name.rpartition(".")
    return _KIND_OF.get(suffix.lower(), "") if stem else ""


def remedy(kind: str) -> str:
    """Return the remedy for files of a kind that ``foreign_kind`` returns."""
    told = (each.remedy for each in known_formats() if each.title == kind)
    return _FOREIGN[kind][1] if kind in _FOREIGN else next(told)


def escaped(text: object) -> str:
    r"""Return a text for one line of a terminal, with odd characters as escapes.

    Example:
        >>> print(escaped("a\nb.jpg"))
        a\nb.jpg
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    odd = {each for each in plain if unicodedata.category(each) in _ODD or each in _TURNING}
    return "".join(each.encode("unicode_escape").decode() if each in odd else each for each in plain)


def names_image(word: str) -> bool:
    """Return whether a text is the path of an image or a clip by its ending, without checking that it exists."""
    name = word.strip().replace("\n", " ").rpartition("/")[2]
    return is_video_name(name) or format_of(name) is not None
