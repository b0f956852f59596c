"""Names of files: the kind of file that a name indicates, and the printed form of a name with odd characters."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib.util import find_spec

PIXELS_VARIABLE = "OPENVSE_MAX_PIXELS"
"""The environment variable with the largest number of pixels of an image, also for processes that this one starts."""

AVIF_NEEDED = "AVIF needs Pillow 11.3 or newer: pip install --upgrade pillow"
VECTOR = "vector graphics are not read, export PNG"
PDF = "documents are not read, export the pages as PNG"
LAYERS = "files with layers are not read, export PNG"
RARE = "rare formats of images are not read, convert to PNG or JPEG"
RARE_VIDEO = "rare formats of videos are not read, convert to MP4"

_IMAGE = re.compile(
    r"[^.].*\.(apng|avifs?|bmp|gif|j2[ck]|jfif?|jif|jp2|jp[cefx]|jpe?g|mpo|p[bgnp]m|pjp(eg)?|png|tiff?|webp)",
    re.IGNORECASE,
)
_VIDEO = re.compile(
    r"[^.].*\.(3g[2p]|asf|avi|divx|f4v|flv|insv|lrv|m[124]v|mk3d|mkv|mov|mp4|mpe|mpe?g|mts|m2ts?|og[mv]|qt|tod|ts|vob|"
    r"webm|wmv)",
    re.IGNORECASE,
)
# Other files that people take for images or clips: the kind, the suffixes, and what to do.
HEIC, JXL, RAW = "HEIC", "JPEG XL", "camera raw"
_FOREIGN = {
    HEIC: ("heic heif hif", "HEIC needs pillow-heif: pip install pillow-heif"),
    JXL: ("jxl", "JPEG XL needs pillow-jxl-plugin: pip install pillow-jxl-plugin"),
    "SVG": ("svg svgz", VECTOR),
    "EPS": ("eps ps ai", VECTOR),
    "of a vector format": ("cdr emf odg wmf", VECTOR),
    "PDF": ("pdf", PDF),
    RAW: (
        "3fr arw cr2 cr3 crw dcr dcs dng erf fff gpr iiq k25 kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf "
        "srw x3f",
        "raw files of cameras need rawpy, which reads their previews: pip install rawpy, or export JPEG",
    ),
    "PSD": ("psd psb", LAYERS),
    "of a layered format": ("afphoto kra ora pdn xcf", LAYERS),
    "JPEG XR": ("jxr hdp wdp", RARE),
    "TGA": ("tga vda icb vst", RARE),
    "ICO": ("ico cur icns", RARE),
    "of a rare image format": (
        "bpg dcm dds dib djv djvu exr fits flif hdr jls jng mng pcx pfm pict qoi ras sgi wbmp xbm xpm",
        RARE,
    ),
    "of a motion photo": ("mp mp~2 mp~3 mv", "clips of motion photos are not read, rename to MP4"),
    "of a rare video format": ("amv braw dv mxf r3d rm rmvb wtv", RARE_VIDEO),
}
_DECODERS = {HEIC: "pillow_heif", JXL: "pillow_jxl", RAW: "rawpy"}
SHOTS = frozenset(_DECODERS)
"""Kinds of images that are read if a package for them is installed."""
_KIND_OF = {suffix: kind for kind, (suffixes, _) in _FOREIGN.items() for suffix in suffixes.split()}
_ODD = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, undecodable bytes, line separators


@cache
def reads(kind: str) -> bool:
    """Return whether files of a kind ("HEIC", "JPEG XL", "camera raw") are read, as the package for it is installed."""
    return kind in _DECODERS and find_spec(_DECODERS[kind]) is not None


def suffix_kind(name: str) -> str:
    """Return the kind by name of a file which Pillow alone does not read, such as "HEIC" or "SVG", or ""."""
    stem, _, suffix = name.rpartition(".")
    return _KIND_OF.get(suffix.lower(), "") if stem else ""


def is_image(name: str) -> bool:
    """Return whether a name belongs to a readable image file. Animations are images."""
    return _IMAGE.fullmatch(name) is not None or (not name.startswith(".") and reads(suffix_kind(name)))


def is_video_name(name: str) -> bool:
    """Return whether a name belongs to a video file."""
    return _VIDEO.fullmatch(name) is not None


def foreign_kind(name: str) -> str:
    """Return the kind of a file that looks like an image and cannot be read, such as "HEIC" or "SVG", or ""."""
    kind = suffix_kind(name)
    return "" if reads(kind) else kind


def remedy(kind: str) -> str:
    """Return the remedy for files of a kind that ``foreign_kind`` returns."""
    return _FOREIGN[kind][1]


def escaped(text: object) -> str:
    r"""Return a text for one line of a terminal, with odd characters as escapes.

    Example:
        >>> print(escaped("a\nb.jpg"))
        a\nb.jpg
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _ODD else letter
        for letter in plain
    )


def names_image(word: str) -> bool:
    """Return whether a text is the path of an image or a clip by its ending, without checking that it exists."""
    name = word.strip().replace("\n", " ").rpartition("/")[2]
    return is_image(name) or is_video_name(name) or suffix_kind(name) in SHOTS
