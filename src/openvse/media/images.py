"""Reading images safely: a file becomes an upright RGB image or raises BadImageError, never anything else."""

from __future__ import annotations

import io
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache, partial
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

import numpy as np
from PIL import ExifTags, Image, ImageChops, ImageMode, ImageOps, ImageSequence, PngImagePlugin, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from openvse.errors import BadImageError, DataError, OpenVSEError
from openvse.media.formats import OF_PILLOW, ImageFormat, boxes_of, plain_message
from openvse.media.listing import PackedFile
from openvse.media.names import PIXELS_VARIABLE, escaped, foreign_kind, format_of, known_formats, names_image, remedy
from openvse.media.segments import ClipSegment

_logger = logging.getLogger(__name__)

ImageLike: TypeAlias = str | Path | bytes | PackedFile | Image.Image | np.ndarray
"""A path, the bytes of a file, a file within a larger one, a PIL image, or an array ``uint8 [H, W]`` or ``[H, W, C]``
with C of 3 or 4."""

ONE_IMAGE = (
    *(Path, bytes, bytearray, memoryview, io.BufferedIOBase),
    *(PackedFile, Image.Image, np.ndarray, ClipSegment),
)
"""The types of one image or clip other than text."""

SMALLER_JPEGS = ":smaller JPEGs"
"""The words in the fingerprint of an encoder that stores features of JPEGs decoded at a smaller size."""

MAX_PIXELS = 80_000_000
"""The default of the largest width x height to decode: 320 MB, as Pillow holds RGB."""

SLOW_S = 10.0
"""An image that takes longer to read, in seconds, is named in a warning."""

MOST_S = 30.0
"""Seconds of one processor after which decoding stops, unless the format is decoded in one call."""

_FULL_SIZE = "openvse_full_size"  # what is known of an image that was decoded smaller, in its info
_SCALED = 4  # a JPEG of so many times the limit is decoded at half its width and height
_SCANS = 100  # scans of a JPEG, each of which goes over the whole image; encoders write about ten
_SCANNED = 33  # numbers that all scans of a JPEG read, for each pixel of the limit; each takes 5 ns
_IN_PYTHON = 10.0  # the work of what Pillow decodes in Python: PPM as text or of odd depths, packed BMP
_TILES = 500_000  # strips or tiles of a TIFF, each of which takes 10 us
_PARTS = 32  # packed texts and profiles of a PNG, each of which takes up to 0.2 s
_LISTS = 65_536  # bytes that list the parts of an AVIF, of which a part takes about 50
_COEFFICIENTS = 6  # numbers of two bytes, for each pixel of the limit, that a progressive JPEG may take
_AT_ONCE = 1 << 22  # pixels that are converted at a time, so that a conversion needs little memory of its own
_TIFF_KIND, _NO_PAGE, _MOST_PAGES = 254, 0b101, 5000  # a smaller copy of another page, or a mask
_TIFF_BITS, _TIFF_INVERTED, _TIFF_SIGN, _TIFF_NO_DATA = 258, 262, 339, 42113
_NO_NUMBER = 1e30  # what programs write for "no data", as the lowest number of 32 bits, lies beyond
_SRGB_WITHIN = 2  # of 255
_DARK, _PALE = 64, 224  # the grey behind pale pictures, and the lowest level that is pale
_IMAGES, _FILES = (tuple(RLock() for _ in range(64)) for _ in range(2))  # each for some of the callers'
_PROFILES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
_MARKER = re.compile(rb"\xff+([^\0\xff\xd0-\xd7])", re.DOTALL)  # of a JPEG, but those within a scan

# The first bytes of other files that people take for images.
_MAGIC = {
    "SVG": re.compile(rb"<svg"),
    "PDF": re.compile(rb"\A%PDF"),
    "EPS": re.compile(rb"\A(%!PS|\xc5\xd0\xd3\xc6)"),
    "PSD": re.compile(rb"\A8BPS"),
}


def is_one(given: object) -> bool:
    """Return whether it is one sentence or image. An array of texts is a column, one of four dimensions a batch."""
    if isinstance(given, np.ndarray):
        return given.ndim in (2, 3) and given.dtype.kind not in "OUT"
    return isinstance(given, (str, *ONE_IMAGE))


def one_or_several(given: Any, what: str) -> list[Any]:
    """Return sentences or images as a list, of one item if it is one. Raise DataError for a table, or no list."""
    if is_one(given):
        return [_as_bytes(given)]
    is_table = isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names")
    if is_table or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise DataError(f"{what} is of the type {type(given).__name__}: give sentences or images")
    return [_as_bytes(each) for each in given]


def _as_bytes(item: Any) -> Any:
    """Return the bytes of an item that holds them in another form, of an open file from its beginning, or the item."""
    if isinstance(item, io.BufferedIOBase):
        if item.seekable():  # it may have been read before, or be in a list twice
            item.seek(0)
        return item.read()
    return bytes(item) if isinstance(item, bytearray | memoryview) else item


def are_images(items: Sequence[Any]) -> bool:
    """Return whether items are images, as text is that ends like one, or sentences. DataError: they are mixed."""
    kinds = [names_image(each) if isinstance(each, str) else True for each in items]
    if len(set(kinds)) < 2:
        return kinds[:1] == [True]
    texts, images = kinds.index(False), kinds.index(True)
    raise DataError(
        f"number {texts} is the sentence {items[texts]!r:.60} and number {images} the image {items[images]!r:.60}: "
        f"give sentences to encode_text, and images to encode_image"
    )


def one_or_many(
    images: ImageLike | ClipSegment | io.BufferedIOBase | Iterable[Any],
) -> Sequence[ImageLike | ClipSegment]:
    """Return images as a sequence. A path, bytes, a PIL image or the array of one image is a sequence of one."""
    if not (given := one_or_several(images, "images")):
        raise DataError(f"{type(images).__name__} holds no images: give an image or a list of images")
    return given


def pixel_limit() -> int:
    """Return the most pixels to decode. Raise OpenVSEError if ``OPENVSE_MAX_PIXELS`` is no number above 0."""
    if (given := os.environ.get(PIXELS_VARIABLE)) is None:
        return MAX_PIXELS
    if not given.isdecimal() or not int(given):
        raise OpenVSEError(f"{PIXELS_VARIABLE} is {given!r}: give the largest number of pixels, such as 200000000")
    if Image.MAX_IMAGE_PIXELS is not None and int(given) > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = None  # Pillow has a limit of its own
    return int(given)


def read_image(source: ImageLike, *, max_pixels: int | None = None, shorter_side: int | None = None) -> Image.Image:
    """Decode an image to upright sRGB.

    The first frame of an animation is used, and the camera's orientation in EXIF is applied. Transparency becomes
    white, or dark grey if the visible picture is mostly white or pale. Colours are converted by the profile of the
    file, if it has a usable one. Of 16 bits the upper 8 are kept. Numbers without a range of their own (32 bits,
    floating point) become black to white from the lowest to the highest.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its width and height where this is enough for ``shorter_side``, and at 1/2
    if it has more pixels than the limit, and at most four times as many.

    Args:
        max_pixels: the largest width x height of the result. A larger image is refused before decoding. None takes
            ``pixel_limit()``. Beyond 178,956,970 pixels Pillow's own limit also refuses other files than JPEG.
        shorter_side: the length in pixels to which the caller shrinks the shorter side. Both sides of a JPEG that is
            decoded smaller stay at least twice as long. None decodes at full size.

    Returns:
        An image of mode RGB, independent of the source. ``full_size`` is its size in the file.

    Raises:
        BadImageError: the source cannot be used. The message has the path and the reason.
    """
    label, limit = _label(source), pixel_limit() if max_pixels is None else max_pixels
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Pillow warns about sizes, which are checked below, and about metadata, which is not needed.
            warnings.simplefilter("ignore")
            with _opened(source, limit) as image:
                # What the caller has opened stays whole.
                side = None if image is source else shorter_side
                _scale(image, limit, side, 1.0 if image is source else _work(image))
                _check_parts(image, limit)
                size, decoded = full_size(image), _to_srgb(_upright(image), given=image is source)
                decoded.info = {_FULL_SIZE: size}  # a profile is no longer that of the pixels
                return decoded
    except BadImageError as error:
        raise BadImageError(f"{label}: {error}") from None
    except Exception as error:  # damaged files make decoders raise almost any error
        raise BadImageError(f"{label}: {reason_of(error)}") from error
    finally:
        if (seconds := time.perf_counter() - began) > SLOW_S:
            _logger.warning("%s took %.0f seconds to read", label, seconds)


def probe_image(number: int, size: tuple[int, int]) -> Image.Image:
    """Return a drawn image with edges and gradients."""
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def opened_image(source: Path | bytes) -> AbstractContextManager[Image.Image]:
    """Open an image file to read its header. A damaged file raises almost any error."""
    return _opened(source, pixel_limit())


def has_more_pages(source: Path | bytes) -> bool:
    """Return whether a file holds more pages or frames than the first one, which ``read_image`` decodes.

    A further picture in a JPEG is a preview or a map of its brightness, unless it is as large.
    """
    with suppress(Exception), opened_image(source) as image:  # what cannot be opened is told elsewhere
        size = image.size
        if image.format == "MPO":
            image.seek(1)
        return bool(getattr(image, "is_animated", False)) and image.size == size
    return False


def further_pages(source: Path) -> Iterator[Image.Image]:
    """Yield the pages of a TIFF behind the first, for ``read_image``. Smaller copies of pages and masks are none."""
    with opened_image(source) as image:
        last = _MOST_PAGES if image.format == "TIFF" else 1
        for page in islice(ImageSequence.Iterator(image), 1, last):
            if not getattr(page, "tag_v2", {}).get(_TIFF_KIND, 0) & _NO_PAGE:
                yield page


def read_page(source: Path, number: int) -> Image.Image:
    """Decode a page of a TIFF behind the first one, which is 1, as ``read_image`` does."""
    reason = "there is none"
    try:
        for page in islice(further_pages(source), number - 2, None):
            return read_image(page)
    except Exception as error:
        reason = reason_of(error)
    raise BadImageError(f"{escaped(source)}: page {number}: {reason}")


@contextmanager
def alone_with(image: Image.Image) -> Iterator[Image.Image]:
    """Keep other threads from an image that a caller has opened, and from its file, which other images may read."""
    with _IMAGES[id(image) // 16 % len(_IMAGES)]:
        file = getattr(image, "fp", None) or image
        with _FILES[id(getattr(file, "_file", file)) // 16 % len(_FILES)]:
            yield image


@contextmanager
def within_memory(source: object) -> Iterator[None]:
    """Raise BadImageError, with the name of the image, if memory does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "llocate memory" not in str(error):  # as PyTorch says it
            raise
        given = source.path if isinstance(source, ClipSegment) else source
        raise BadImageError(f"{_label(given)}: {_REASONS[MemoryError]}") from error


def full_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height, before any turn, of the file from which ``read_image`` has decoded an image."""
    size: tuple[int, int] = image.info.get(_FULL_SIZE, image.size)
    return size


def _check_parts(image: Image.Image, limit: int) -> None:
    """Raise BadImageError if an undecoded file has enough parts to hold up decoding for minutes."""
    if (parts := len(getattr(image, "tile", ()))) > _TILES:
        raise BadImageError(f"it has {parts:,} tiles, at most {_TILES:,} are decoded: save it with larger ones")
    if not parts or not isinstance(image, JpegImageFile) or image.fp is None:
        return
    # Pillow stops behind the header of the first scan, which holds all components in most files.
    components = len(image.layer)
    if image.format == "JPEG" and "progressive" not in image.info and components in (1, 3):
        image.fp.seek(-8 - 2 * components, os.SEEK_CUR)
        if image.fp.read(5) == bytes([0xFF, 0xDA, 0, 6 + 2 * components, components]):
            return
    image.fp.seek(0)
    content = image.fp.read()
    scans, pixels = content.count(b"\xff\xda"), math.prod(full_size(image))
    if scans <= _SCANS and scans * components * pixels <= _SCANNED * limit:
        return
    scans, share = _scanned(content, image.layer)
    if scans > _SCANS:
        raise BadImageError(f"it has {scans:,} scans, at most {_SCANS} are decoded: save it as a plain JPEG")
    if share * pixels > _SCANNED * limit:
        raise BadImageError(f"it has {scans:,} scans, too many for its size: save it as a plain JPEG")


def _scanned(content: bytes, layer: Sequence[Sequence[int]]) -> tuple[int, float]:
    """Return the number of scans of a JPEG, and how many numbers they read for each pixel.

    Scans of a preview in its header or of files after its end do not count. ``layer`` has the number of each component
    and its sampling across and down.
    """
    most = max(each[1] for each in layer) * max(each[2] for each in layer)
    shares = {each[0]: each[1] * each[2] / most for each in layer}
    count, share, at = 0, 0.0, 2
    while (marker := _MARKER.search(content, at)) and marker[1] != b"\xd9":
        start = marker.end()
        at = start + int.from_bytes(content[start : start + 2], "big")
        if marker[1] == b"\xda":
            count += 1
            share += sum(shares.get(component, 1.0) for component in content[start + 3 : at - 3 : 2])
    return count, share


def _work(image: Image.Image) -> float:
    """Return the number of pixels of a plain image that take as long to decode as one of this image."""
    is_slow = any(tile[0] in Image.DECODERS for tile in getattr(image, "tile", ())[:1])
    if is_slow or not image.format:
        return _IN_PYTHON if is_slow else 1.0
    return next((each.work for each in known_formats() if each.pillow == image.format), 1.0)


def _scale(image: Image.Image, limit: int, side: int | None, work: float) -> None:
    """Let the decoder shrink a JPEG. Raise BadImageError if an image is too large even at half its width and height."""
    most = image.size
    if image.width * image.height * work > limit:
        _check_half(image, limit, work)
        most = image.width // 2, image.height // 2
    if side is not None and min(most) >= 2 * side:
        most = 2 * side, 2 * side
    if most != image.size and isinstance(image, JpegImageFile):
        image.info[_FULL_SIZE] = image.size
        image.draft(None, most)  # the smallest scale that is not below


def _check_half(image: Image.Image, limit: int, work: float) -> None:
    """Raise BadImageError unless an image of more pixels than the limit can be decoded at half its width and height."""
    pixels = image.width * image.height
    if not isinstance(image, JpegImageFile) or pixels > _SCALED * limit or min(image.size) < 2:
        raise too_large(image.size, limit, work)
    across, down = ([each[place] for each in image.layer] for place in (1, 2))
    samples = sum(x * y for x, y in zip(across, down, strict=True)) / (max(across) * max(down))
    if "progressive" in image.info and pixels * samples > _COEFFICIENTS * limit:
        raise BadImageError(
            f"{_size_message(image.size, limit)}, and it is progressive: save it as a plain JPEG, or make it smaller"
        )


def too_large(size: tuple[int, int], limit: int, work: float = 1.0) -> BadImageError:
    """Return the error of an image with more pixels than a limit. The user can change it unless a caller set it.

    Each pixel counts ``work`` times.
    """
    enough = math.ceil(size[0] * size[1] * work)
    more = "" if limit != pixel_limit() else f", or allow more (--max-pixels {enough})"
    of_kind = "" if work == 1 else " of this kind, which is slow to decode"
    return BadImageError(f"{_size_message(size, int(limit / work))}{of_kind}: make it smaller{more}")


def _size_message(size: tuple[int, int], limit: int) -> str:
    return f"it has {size[0]} x {size[1]} pixels, at most {limit:,} are decoded"


def _label(source: object) -> str:
    match source:
        case bytes():
            return f"an image of {len(source):,} bytes"
        case Image.Image():
            return f"an image of mode {source.mode}"
        case np.ndarray():
            return f"an array {source.dtype} {list(source.shape)}"
        case str() | Path() | PackedFile():
            return escaped(source)
        case _:
            return f"an object of the type {type(source).__name__}"


@cache
def _formats() -> tuple[str, ...]:
    """Return the supported formats that this build of Pillow can read."""
    Image.init()
    # A text or profile of a PNG may be as large as all of them together, which is 64 MB; what is larger is left out.
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
    for name in ("chunk_tEXt", "chunk_zTXt", "chunk_iTXt", "chunk_iCCP"):
        setattr(PngImagePlugin.PngStream, name, _passed_over(getattr(PngImagePlugin.PngStream, name)))
    if "AVIF" in Image.OPEN:
        opener, accepts = Image.OPEN["AVIF"]
        Image.register_open("AVIF", partial(_opened_avif, opener), accepts)
    return tuple(each.pillow for each in OF_PILLOW if each.pillow in Image.OPEN)


def _passed_over(read: Callable[[Any, int, int], bytes]) -> Callable[[Any, int, int], bytes]:
    """Return a reader that skips a part of a PNG if it is too large, or comes after such a part or after many parts."""
    is_packed = read.__name__ != "chunk_tEXt"

    def chunk(stream: Any, at: int, length: int) -> bytes:
        left = getattr(stream, "parts_left", _PARTS)
        try:
            if left <= 0:
                raise ValueError
            stream.parts_left = left - is_packed
            return read(stream, at, length)
        except ValueError:
            stream.parts_left = 0
            stream.fp.seek(at)
            whole: bytes = stream.fp.read(length)
            return whole  # of which a checksum follows

    return chunk


def _opened_avif(opener: Callable[[Any, Any], ImageFile], file: Any, name: Any) -> ImageFile:
    """Open an AVIF with Pillow. Raise BadImageError if it has many parts, each of which is looked for among all."""
    lists = [each for kind, data in boxes_of(file) if kind == b"meta" for each in boxes_of(io.BytesIO(data[4:]))]
    lists += [each for kind, data in lists if kind == b"iprp" for each in boxes_of(io.BytesIO(data))]
    file.seek(0)
    size = sum(len(data) for kind, data in lists if kind in (b"iinf", b"iloc", b"iref", b"ipma"))
    if size > _LISTS:
        raise BadImageError(f"it lists its parts in {size:,} bytes, at most {_LISTS:,} are read: save it again")
    return opener(file, name)


def _opened(source: ImageLike, limit: int) -> AbstractContextManager[Image.Image]:
    """Read the header of a file, or wrap an image that is already decoded. See ``_scale``.

    What its format cannot open without decoding is decoded here, after a comparison of its size with the limit.
    """
    match source:
        case Image.Image() if min(source.size):
            return alone_with(source)
        case np.ndarray():
            channels = source.shape[2] if source.ndim == 3 else 1
            if source.dtype != np.uint8 or source.ndim not in (2, 3) or channels not in (1, 3, 4) or not source.size:
                raise BadImageError("give uint8 [H, W], [H, W, 3] or [H, W, 4]")
            return nullcontext(Image.fromarray(source[:, :, 0] if source.ndim == 3 and channels == 1 else source))
        case bytes() | PackedFile():
            content = source if isinstance(source, bytes) else source.read_bytes()
            name, size = "" if isinstance(source, bytes) else source.name, len(content)
            file: Path | io.BytesIO = io.BytesIO(content)
        case str() | Path():
            file = Path(source)
            name, size = file.name, file.stat().st_size
        case _:
            raise BadImageError("give a path, the bytes of a file, a PIL image of some pixels, or an array")
    if size == 0:
        raise BadImageError("the file is empty")
    known = format_of(name)
    if known is not None and known.opens is not None and known.begins is None:  # only its name can tell
        return _opened_by(known, file, limit)
    return _opened_file(file, limit)


def _opened_file(file: Path | io.BytesIO, limit: int) -> Image.Image:
    try:
        return Image.open(file, formats=_formats())
    except Image.DecompressionBombError:
        if not _start(file).startswith(b"\xff\xd8\xff"):
            raise
        if isinstance(file, io.BytesIO):
            file.seek(0)
        return JpegImageFile(file)  # without the limit of Pillow
    except UnidentifiedImageError:
        start = _start(file)
        for known in known_formats():
            if known.begins is None or not known.begins(start):
                continue
            if known.opens is not None:
                return _opened_by(known, file, limit)
            if known.pillow not in _formats():
                raise BadImageError(known.remedy) from None
        if reason := _foreign(start, file):
            raise BadImageError(reason) from None
        raise


def _start(file: Path | io.BytesIO) -> bytes:
    """Return the first bytes of a file."""
    if isinstance(file, io.BytesIO):
        return file.getvalue()[:1024]
    with file.open("rb") as opened:
        return opened.read(1024)


def _opened_by(known: ImageFormat, file: Path | io.BytesIO, limit: int) -> Image.Image:
    """Open a file with the decoder of its format, after a comparison of its size with the limit if that decodes it."""
    if known.size is not None and known.is_read:
        content = file.getvalue() if isinstance(file, io.BytesIO) else file.read_bytes()
        width, height = known.size(content)
        if width * height * known.work > limit:
            raise too_large((width, height), limit, known.work)
        file = io.BytesIO(content)
    if not min((image := known(file)).size):
        raise BadImageError("it has no pixels")
    return image


def _foreign(start: bytes, file: Path | io.BytesIO) -> str:
    """Return the kind of an unsupported file, by its content or else its name, or "" if it is unknown."""
    kind = next((kind for kind, magic in _MAGIC.items() if magic.search(start)), "")
    if not kind and not isinstance(file, io.BytesIO):
        kind = foreign_kind(file.name)
    return f"it is {kind}: {remedy(kind)}" if kind else ""


def _to_srgb(image: Image.Image, *, given: bool) -> Image.Image:
    """Convert a decoded image to sRGB on one ground, without sharing the pixels of an image from the caller."""
    profile = image.info.get("icc_profile")
    own = "CMYK" if image.mode == "CMYK" else ImageMode.getmode(image.mode).basemode.replace("P", "RGB")
    transform: Any = _transform(profile, own) if profile else None
    kind = "" if transform is None else transform.input_mode
    converted = image if kind == "CMYK" else _to_rgb(image, given=given)
    if kind == "RGB":
        transform.apply_in_place(converted)
    elif kind:
        converted = transform.apply(converted.getchannel(0) if kind == "L" else converted)
    return converted


@lru_cache(maxsize=32)
def _transform(profile: bytes, kind: str) -> Any:
    """Return a function that turns the colours of a profile into sRGB, as viewers do, or None for nothing to do.

    There is nothing to do for sRGB itself, and for a profile that is damaged or meant for images of another kind.
    """
    from PIL import ImageCms

    if _PROFILES.get(profile[16:20]) != kind:
        return None
    try:
        srgb, intent = ImageCms.createProfile("sRGB"), ImageCms.Intent.RELATIVE_COLORIMETRIC
        transform: Any = ImageCms.buildTransform(io.BytesIO(profile), srgb, kind, "RGB", intent)
    except (ImageCms.PyCMSError, ImportError):  # Pillow can be built without it
        return None
    probe = probe_image(0, (64, 64)).convert(kind)
    apart = ImageChops.difference(transform.apply(probe), probe.convert("RGB"))
    return transform if np.asarray(apart).max() > _SRGB_WITHIN else None


def _to_rgb(image: Image.Image, *, given: bool) -> Image.Image:
    """Convert a decoded image to RGB on one ground, with any profile."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy() if given else image._new(image.im)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _shallow(image)
    if image.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in image.info:
        return image.convert("RGB")
    page, shade = Image.new("RGB", image.size), _ground(image)
    rows = max(1, _AT_ONCE // image.width)
    for top in range(0, image.height, rows):
        layer = _layer(image.crop((0, top, image.width, min(top + rows, image.height))))
        ground = Image.new("RGBA", layer.size, (shade, shade, shade, 255))
        page.paste(Image.alpha_composite(ground, layer).convert("RGB"), (0, top))
    return page


def _layer(image: Image.Image) -> Image.Image:
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def _ground(image: Image.Image) -> int:
    """Return the grey to put behind an image: white, or dark if most of what is visible would vanish on white."""
    sample = np.asarray(_layer(image.resize((256, 256), Image.Resampling.NEAREST)), np.int64)
    alpha, is_pale = sample[..., 3], sample[..., :3].min(axis=2) >= _PALE
    return _DARK if 4 * alpha[is_pale].sum() > 3 * alpha.sum() else 255


def _shallow(image: Image.Image) -> Image.Image:
    """Return grey of more than 8 bits as 8 bits. Pillow itself would clip at 255, which is nearly white."""
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    if image.mode == "I" and tags.get(_TIFF_BITS) == (32,) and tags.get(_TIFF_SIGN, (1,)) == (1,):
        values = values.view(np.uint32)  # Pillow has only numbers with a sign
    # Of a known number of bits the upper 8 are kept.
    known = 12 if tags.get(_TIFF_BITS) == (12,) else 16
    has_range = image.mode.startswith("I;") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    low, high = (0.0, 2.0**known) if has_range else _range(values, tags)
    step, half = (256 / high, 0.0) if has_range else (255 / ((high - low) or 1.0), 0.5)
    grey, rows = np.empty(values.shape, np.uint8), max(1, _AT_ONCE // image.width)
    for top in range(0, len(values), rows):
        block = np.nan_to_num(values[top : top + rows].astype(np.float64), nan=low).clip(low, high)
        grey[top : top + rows] = np.minimum((block - low) * step + half, 255)
    if tags.get(_TIFF_INVERTED) == 0:
        grey = 255 - grey
    shallow = Image.fromarray(grey)
    if (clear := image.info.get("transparency")) is not None:
        shallow.putalpha(Image.fromarray(values != clear).convert("L"))
    return shallow


def _range(values: np.ndarray, tags: Mapping[int, object]) -> tuple[float, float]:
    """Return the lowest and the highest number, without numbers that mean no data."""
    known = np.abs(values) < _NO_NUMBER if values.dtype.kind == "f" else np.ones(values.shape, bool)
    with suppress(ValueError):
        known &= values != float(str(tags.get(_TIFF_NO_DATA, "nan")).strip("\0 "))
    numbers = values[known]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)


class _Timed:
    """The file of an image. Reading it fails when decoding has taken too long (``MOST_S``)."""

    def __init__(self, file: Any) -> None:
        self._file, self._until = file, time.thread_time() + MOST_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, *size: int) -> bytes:
        if time.thread_time() > self._until:
            raise BadImageError(f"it takes more than {MOST_S:g} seconds to decode: save it in another format")
        content: bytes = self._file.read(*size)
        return content


def _upright(image: Image.Image) -> Image.Image:
    """Decode an image, and turn it as the camera was held."""
    if isinstance(image, ImageFile) and image.fp is not None:
        image.fp = _Timed(image.fp)  # type: ignore[assignment] # it is used as a file
    image.load()
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # a damaged EXIF block does not make the image unusable
        return image


_REASONS = {
    FileNotFoundError: "there is no such file",
    IsADirectoryError: "it is a folder, not a file",
    PermissionError: "the file may not be read",
    MemoryError: "there is not enough memory to decode it",
    Image.DecompressionBombError: "it claims more pixels than Pillow's limit of 178,956,970: make it smaller, or allow "
    "more (--max-pixels)",
    UnidentifiedImageError: "it is not an image we read",
    EOFError: "it ends before its first frame",
}


def reason_of(error: Exception) -> str:
    """Return in one line the reason why a decoder, the memory or the file system failed."""
    known = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
    return known or f"it is truncated or damaged, or of another kind ({plain_message(error)})"
