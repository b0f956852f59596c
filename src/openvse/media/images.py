"""Reading images safely: a file becomes an upright RGB image or raises BadImageError, never anything else."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from openvse.errors import BadImageError
from openvse.media.names import (
    AVIF_NEEDED,
    HEIF_NEEDED,
    escaped,
    foreign_kind,
    reads_heif,
    remedy,
)
from openvse.media.packed import PackedFile
from openvse.media.segments import ClipSegment

ImageLike: TypeAlias = str | Path | bytes | PackedFile | Image.Image | np.ndarray
"""A path, the bytes of a file, a file within a larger one, a PIL image, or an array.

Arrays are ``uint8 [H, W]``, ``[H, W, 3]`` or ``[H, W, 4]``.
"""

MAX_PIXELS = 80_000_000
"""Largest width x height that is decoded by default: 240 MB as RGB."""

# Pillow would hand an EPS file to Ghostscript and reads many rare formats: untrusted files are offered only to
# the decoders of common formats.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "AVIF", "JPEG2000")

# The first bytes of other files that people take for images.
_MAGIC = {
    "SVG": re.compile(rb"<svg"),
    "PDF": re.compile(rb"\A%PDF"),
    "EPS": re.compile(rb"\A(%!PS|\xc5\xd0\xd3\xc6)"),
    "PSD": re.compile(rb"\A8BPS"),
}


def one_or_many(
    images: ImageLike | ClipSegment | Sequence[ImageLike | ClipSegment],
) -> Sequence[ImageLike | ClipSegment]:
    """Return images as a sequence; a path, bytes, a PIL image or the array of one image is a sequence of one."""
    if isinstance(images, str | Path | bytes | PackedFile | Image.Image | ClipSegment):
        return [images]
    if isinstance(images, np.ndarray):
        return [images] if images.ndim in (2, 3) else list(images)
    return images


def read_image(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image to upright RGB.

    The first frame of an animation is used, transparency becomes white, 16-bit grey keeps its upper bits, and the
    orientation that a camera wrote into EXIF is applied.

    Args:
        source: see ``ImageLike``.
        max_pixels: the largest width x height; a larger image is refused before decoding. Above 178,956,970 pixels
            Pillow's own limit also refuses the file.

    Returns:
        An image of mode RGB that no longer depends on the source.

    Raises:
        BadImageError: the source cannot be used; the message has the path and the reason.
    """
    label = _label(source)
    try:
        with warnings.catch_warnings():
            # Pillow warns about sizes, which are checked below, and about metadata, which is not needed.
            warnings.simplefilter("ignore")
            with _opened(source) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise BadImageError(
                        f"it has {width} x {height} pixels, at most {max_pixels:,} are decoded"
                    )
                return _to_rgb(_upright(image))
    except BadImageError as error:
        raise BadImageError(f"{label}: {error}") from None
    except Exception as error:  # damaged files make decoders raise almost any error
        raise BadImageError(f"{label}: {_reason(error)}") from error


def _label(source: ImageLike) -> str:
    match source:
        case bytes():
            return f"an image of {len(source):,} bytes"
        case Image.Image():
            return f"an image of mode {source.mode}"
        case np.ndarray():
            return f"an array {source.dtype} {list(source.shape)}"
        case _:
            return escaped(source)


@cache
def _formats() -> tuple[str, ...]:
    """Return the supported formats that this build of Pillow can read."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _opened(source: ImageLike) -> AbstractContextManager[Image.Image]:
    """Read the header of a file, or wrap an image that is already decoded; nothing is decoded here."""
    match source:
        case Image.Image():
            return nullcontext(source)
        case np.ndarray():
            return nullcontext(_from_array(source))
        case bytes():
            return _opened_file(io.BytesIO(source), len(source))
        case PackedFile():
            content = source.read_bytes()
            return _opened_file(io.BytesIO(content), len(content))
        case _:
            return _opened_file(source, Path(source).stat().st_size)


def _opened_file(file: str | Path | io.BytesIO, size: int) -> Image.Image:
    if size == 0:
        raise BadImageError("the file is empty")
    try:
        return Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        start = _start(file)
        if _is_heif(start):
            return _opened_heif(file)
        if reason := _foreign(start, file):
            raise BadImageError(reason) from None
        raise


def _start(file: str | Path | io.BytesIO) -> bytes:
    """Return the first bytes of a file."""
    if isinstance(file, io.BytesIO):
        return file.getvalue()[:1024]
    with Path(file).open("rb") as opened:
        return opened.read(1024)


def _is_heif(start: bytes) -> bool:
    """Return whether a file begins like HEIC; AVIF has the same container and another brand (ISO/IEC 23008-12)."""
    brands = start[8 : int.from_bytes(start[:4], "big")] if start[4:8] == b"ftyp" else b""
    return b"avif" not in brands and any(brand in brands for brand in (b"heic", b"heix", b"mif1", b"msf1"))


def _opened_heif(file: str | Path | io.BytesIO) -> Image.Image:
    """Open a HEIC file with the decoder of the extra ``heif``, which turns it upright itself."""
    if not reads_heif():
        raise BadImageError(HEIF_NEEDED)
    import pillow_heif

    pillow_heif.register_heif_opener()
    try:
        return Image.open(file, formats=("HEIF",))
    except UnidentifiedImageError:
        raise BadImageError("it is a HEIC file that is truncated or damaged") from None


def _foreign(start: bytes, file: str | Path | io.BytesIO) -> str:
    """Return the kind of an unsupported file, by its content or else its name; "" if it is unknown."""
    if start[4:8] == b"ftyp" and b"avif" in start[:64]:
        return AVIF_NEEDED
    kind = next((kind for kind, magic in _MAGIC.items() if magic.search(start)), "")
    if not kind and not isinstance(file, io.BytesIO):
        kind = foreign_kind(Path(file).name)
    return f"it is {kind}: {remedy(kind)}" if kind else ""


def _from_array(array: np.ndarray) -> Image.Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4) or not array.size:
        raise BadImageError("give uint8 [H, W], [H, W, 3] or [H, W, 4]")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and channels == 1 else array)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Decode the first frame and convert it to RGB on white."""
    if image.mode == "F":
        raise BadImageError("floating-point pixels have no defined white; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _from_deep_grey(np.asarray(image))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    rgb = image.convert("RGB")
    return rgb.copy() if rgb is image else rgb


def _from_deep_grey(grey: np.ndarray) -> Image.Image:
    """Keep the upper 8 of 16 bits; Pillow itself would clip at 255 and return a nearly white image."""
    return Image.fromarray((grey.astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block does not make the image unusable
        return image


def _reason(error: Exception) -> str:
    """Return in one line why Pillow or the file system failed."""
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a folder, not an image"
        case PermissionError():
            return "the file may not be read"
        case Image.DecompressionBombError():
            return "it claims more pixels than Pillow's limit of 178,956,970"
        case UnidentifiedImageError():
            return "it is not an image we read"
        case _:
            return f"it is truncated or damaged ({' '.join(str(error).split()) or type(error).__name__})"
