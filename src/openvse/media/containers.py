"""What a file holds about its picture, wherever its container keeps it: EXIF, IPTC, XMP, and the texts of a PNG."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from PIL import ExifTags, Image
from PIL.GifImagePlugin import GifImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from openvse.errors import DataError
from openvse.media.formats import MOST_XMP, boxes_in
from openvse.media.images import opened_image
from openvse.media.names import escaped, format_of

_MOST_TAGS = 200_000  # of a packet; each takes 100 bytes
_CHUNKS, _LARGEST_CHUNK = 200_000, 1 << 26  # of a PNG: the number looked at, and bytes of one that is read
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")
_OF_PHOTOSHOP = b"Photoshop 3.0\0"
_IN_GIF, _END_IN_GIF = b"!\xff\x0bXMP DataXMP", b"\x01\xff\xfe\xfd"
_BOXES = {  # of a JPEG 2000, by their UUID
    b"JpgTiffExif->JP2": "exif",
    bytes.fromhex("be7acfcb97a942e89c71999491e3afac"): "xmp",
    bytes.fromhex("33c7a4d2b81d4723a0baf1a3e097ad38"): "photoshop",
}
_PLAIN = b"http://ns.adobe.com/xap/1.0/\0"
_REST = re.compile(rb"http://ns\.adobe\.com/xmp/extension/\0(\w{32})(.{4})(.{4})(.+)", re.DOTALL)
_IDENTIFIER = re.compile(rb"\b\w{32}\b")
_AROUND, _DECLARATION = b"\xef\xbb\xbf\0 \n\r\t", re.compile(rb"^<\?xml\s.*?\?>", re.DOTALL)


@contextmanager
def held_in(path: Path) -> Iterator[tuple[Image.Exif, bytes | str, dict[Any, Any]]]:
    """Open a file for its EXIF, its packet of XMP, and what Pillow has read of it. No pixel is decoded.

    IPTC, or Photoshop's resources with it, is in EXIF, as in a TIFF. A damaged file raises almost any error.
    """
    known = format_of(path.name)
    if known is not None and known.facts is not None and (held := known.facts(path)) is not None:
        yield *held, {}
        return
    with opened_image(path) as image:
        info = image.info
        if isinstance(image, PngImageFile):
            _read_behind_pixels(image)
            _read_profiles(info)
        elif isinstance(image, GifImageFile):
            info["xmp"] = _packet_in_gif(path)
        elif isinstance(image, Jpeg2KImageFile):
            boxes = (data for kind, data in boxes_in(path) if kind == b"uuid")
            info |= {_BOXES[data[:16]]: data[16:] for data in boxes if data[:16] in _BOXES}
        xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
        if isinstance(image, JpegImageFile):
            xmp = _extended(xmp, image.applist)
            blocks = (data for name, data in image.applist if name == "APP13" and data.startswith(_OF_PHOTOSHOP))
            info["photoshop"] = b"".join(each.removeprefix(_OF_PHOTOSHOP) for each in blocks)
        exif = Image.Image.getexif(image)  # the method of PNG would decode an image without EXIF
        if resources := info.get("photoshop"):
            exif[ExifTags.Base.ImageResources] = resources
        yield exif, xmp, info


def unread_facts(paths: Iterable[Path]) -> list[str]:
    """Return a line that counts the files of each format whose facts are not read, and says what to do."""
    cases: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        with suppress(OSError):
            if (known := format_of(path.name)) and known.unread and (reason := known.unread(path)):
                cases.setdefault((known.title, reason), []).append(path)
    return [
        f"the facts of {len(some):,} {title} file(s) are not read (first: {escaped(some[0])}): {reason}"
        for (title, reason), some in cases.items()
    ]


def _read_behind_pixels(image: PngImageFile) -> None:
    """Read texts and EXIF that a PNG holds behind its pixels, which Pillow reads only if it decodes them."""
    file, stream, at = image.fp, image.png, 8
    assert file is not None and stream is not None, "no pixel is decoded"
    for _ in range(_CHUNKS):
        file.seek(at)
        length, kind = int.from_bytes(file.read(4), "big"), file.read(4)
        if at > image.tile[0].offset and kind in _TEXTS and length <= _LARGEST_CHUNK:
            with suppress(Exception):  # what is wrong with one says nothing of the others
                stream.call(kind, at + 8, length)
        if kind in (b"", b"IEND"):
            return
        at += length + 12


def _packet_in_gif(path: Path) -> bytes:
    """Return the packet of XMP in the beginning of a GIF, where programs put it, in front of the pixels."""
    with path.open("rb") as file:
        packet, end, _ = file.read(_LARGEST_CHUNK).partition(_IN_GIF)[2].partition(_END_IN_GIF)
    return packet if end else b""


def _read_profiles(info: dict[Any, Any]) -> None:
    """Read what programs wrote into a PNG as lines of digits, before it had parts for it: EXIF, XMP and IPTC."""
    for name, held in (("xmp", "xmp"), ("app1", "xmp"), ("APP1", "xmp"), ("iptc", "photoshop"), ("8bim", "photoshop")):
        with suppress(ValueError):
            lines = str(info.get(f"Raw profile type {name}", "")).split("\n")
            if data := bytes.fromhex("".join(lines[3:])):
                info.setdefault("exif" if data.startswith(b"Exif\0") else held, data.removeprefix(_PLAIN))


def _extended(xmp: bytes, segments: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the XMP of a JPEG with the rest that had no room in its segment, if that is whole and can be read.

    Each segment of the rest has an identifier, which the packet mentions, the length of the rest, and its own place.
    """
    parts: dict[int, bytes] = {}
    length, rest, mentioned = 0, bytearray(), {*_IDENTIFIER.findall(xmp.upper())}
    for match in (_REST.fullmatch(data) for name, data in segments if name == "APP1"):
        if match and match[1].upper() in mentioned:
            length = int.from_bytes(match[2], "big")
            parts[int.from_bytes(match[3], "big")] = match[4]
    for start, part in sorted(parts.items()):
        rest += part if start == len(rest) else b""
    joined = b"<x>%b</x>" % b"".join(_DECLARATION.sub(b"", each.strip(_AROUND)) for each in (xmp, rest))
    with suppress(DataError):
        if rest and len(rest) == length:
            elements_of(joined)
            return joined
    return xmp


def elements_of(packet: bytes | str) -> list[ElementTree.Element]:
    """Return the elements of a packet of XMP, none for an empty one. Raise DataError if it is none or might harm."""
    if isinstance(packet, bytes):
        is_wide = packet.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        packet = packet.decode("utf-16" if is_wide else "utf-8", "replace")
    if not (text := packet.strip("\ufeff\0 \n\r\t")):
        return []
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DataError("it declares entities of XML, and is not read: write it as plain XMP")
    if len(text) > MOST_XMP or text.count("<") > _MOST_TAGS:
        raise DataError(f"it has more than {MOST_XMP / 1e6:g} MB or {_MOST_TAGS:,} tags of XML, and is not read")
    try:
        return [*ElementTree.fromstring(text).iter()]
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"it is no XML ({error}): write it again, or remove it") from error
