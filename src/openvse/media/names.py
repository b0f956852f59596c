"""Names of files: the kind of file that a name indicates, and how to print a name with odd characters."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib.util import find_spec

PIXELS_VARIABLE = "OPENVSE_MAX_PIXELS"
"""The environment variable with the largest number of pixels of an image, also for processes that this one starts."""

HEIF_NEEDED = "HEIC needs pillow-heif: pip install pillow-heif"
AVIF_NEEDED = "AVIF needs Pillow 11.3 or newer: pip install --upgrade pillow"
VECTOR = "vector graphics are not read, export PNG"
PDF = "documents are not read, export the pages as PNG"
RAW = "raw files of cameras are not read, export JPEG"
LAYERS = "files with layers are not read, export PNG"
RARE = "rare formats of images are not read, convert to PNG or JPEG"
RARE_VIDEO = "rare formats of videos are not read, convert to MP4"

_IMAGE = re.compile(
    r"[^.].*\.(apng|avifs?|bmp|gif|j2[ck]|jfif?|jif|jp2|jp[cefx]|jpe?g|mpo|p[bgnp]m|pjp(eg)?|png|tiff?|webp)",
    re.IGNORECASE,
)
_HEIF = re.compile(r"[^.].*\.(heic|heif|hif)", re.IGNORECASE)
_VIDEO = re.compile(
    r"[^.].*\.(3g[2p]|asf|avi|divx|f4v|flv|insv|lrv|m[124]v|mk3d|mkv|mov|mp4|mpe|mpe?g|mts|m2ts?|og[mv]|qt|tod|ts|vob|"
    r"webm|wmv)",
    re.IGNORECASE,
)
# Other files that people take for images or clips: the kind, the suffixes, and what to do.
_FOREIGN = {
    "SVG": ("svg svgz", VECTOR),
    "EPS": ("eps ps ai", VECTOR),
    "of a vector format": ("cdr emf odg wmf", VECTOR),
    "PDF": ("pdf", PDF),
    "camera raw": (
        "3fr arw cr2 cr3 crw dcr dcs dng erf fff gpr iiq k25 kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf "
        "srw x3f",
        RAW,
    ),
    "PSD": ("psd psb", LAYERS),
    "of a layered format": ("afphoto kra ora pdn xcf", LAYERS),
    "JPEG XL": ("jxl", RARE),
    "JPEG XR": ("jxr hdp wdp", RARE),
    "TGA": ("tga vda icb vst", RARE),
    "ICO": ("ico cur icns", RARE),
    "of a rare image format": (
        "bpg dcm dds dib djv djvu exr fits flif hdr jls jng mng pcx pfm pict qoi ras sgi wbmp xbm xpm",
        RARE,
    ),
    "of a rare video format": ("amv braw dv mxf r3d rm rmvb wtv", RARE_VIDEO),
}
_KIND_OF = {suffix: kind for kind, (suffixes, _) in _FOREIGN.items() for suffix in suffixes.split()}
_ODD = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, undecodable bytes, line separators


@cache
def reads_heif() -> bool:
    """Return whether the decoder of HEIC files is installed."""
    return find_spec("pillow_heif") is not None


def is_image(name: str) -> bool:
    """Return whether a name is that of an image file that can be read; animations are images."""
    if _IMAGE.fullmatch(name) is not None:
        return True
    return _HEIF.fullmatch(name) is not None and reads_heif()


def is_video_name(name: str) -> bool:
    """Return whether a name is that of a video file."""
    return _VIDEO.fullmatch(name) is not None


def foreign_kind(name: str) -> str:
    """Return the kind of a file that looks like an image and cannot be read: "HEIC", "SVG", ...; otherwise ""."""
    if _HEIF.fullmatch(name) is not None:
        return "" if reads_heif() else "HEIC"
    stem, _, suffix = name.rpartition(".")
    return _KIND_OF.get(suffix.lower(), "") if stem else ""


def remedy(kind: str) -> str:
    """Return what to do about files of a kind that ``foreign_kind`` returns."""
    return HEIF_NEEDED if kind == "HEIC" else _FOREIGN[kind][1]


def is_odd(name: str) -> bool:
    """Return whether a name holds line breaks, control characters or bytes that are not UTF-8."""
    return not name.isprintable() and any(unicodedata.category(letter) in _ODD for letter in name)


def escaped(text: object) -> str:
    r"""Return a text for one line of a terminal, with odd characters as escapes.

    Example:
        >>> print(escaped("a\nb.jpg"))
        a\nb.jpg
    """
    plain = str(text)
    if not is_odd(plain):
        return plain
    return "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _ODD else letter
        for letter in plain
    )
