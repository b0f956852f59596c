"""What the header of a photograph or video says: when and where it was taken, by which camera, and words about it.

EXIF (CIPA DC-008) comes from Pillow, and so does IPTC (IIM 4); XMP (ISO 16684-1) is read by Python's own parser, which
is handed no document that declares entities. The facts of videos are those that FFmpeg finds in the container.
"""

from __future__ import annotations

import codecs
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from PIL import ExifTags, Image, IptcImagePlugin
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from openvse.media.images import opened_image
from openvse.media.jxl import boxes_of
from openvse.media.names import is_video_name, suffix_kind
from openvse.media.videos import opened_video

Header = dict[str, object]
"""What is known of ``taken`` (ISO 8601, as the clock at the place showed it, with its offset if known), ``camera``,
``latitude`` and ``longitude`` (degrees, WGS 84), ``title``, ``description`` and ``keywords`` (a list)."""

_DATE = re.compile(  # a year, month or day alone too; EXIF leaves blanks for the rest, and IPTC writes no separators
    r"(\d{4})(?:[-:/.]?(\d\d)(?:[-:/.]?(\d\d)(?:[ T](\d\d)(?::?(\d\d)(?::?(\d\d))?(?:\.\d+)?)?)?)?)?"
    r"\s*(Z|[+-]\d\d:?\d\d)?[-:/. ]*",
    re.ASCII,
)
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")
_PLACE = re.compile(r"([+-]\d{1,2}(?:\.\d+)?)([+-]\d{1,3}(?:\.\d+)?)")
_DIGITS = re.compile("[1-9]")
_UNSET = ("0", "1904-01-01T00:00", "1970-01-01T00:00")  # what clocks show that were never set
_COMPANY = re.compile(r",? (corporation|corp|company|co|ltd|inc|gmbh|ag|optical|imaging)\b\.?", re.IGNORECASE)
_OF_CAMERA = re.compile(r".*DIGITAL CAMERA|SONY DSC|DCIM\b.*|SAMSUNG|default|Untitled")  # no descriptions
_LONGEST = 2000  # characters of a text
_MOST = 200  # keywords
_RDF, _DC = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}", "{http://purl.org/dc/elements/1.1/}"
_CREATED = (
    "{http://ns.adobe.com/photoshop/1.0/}DateCreated",
    "{http://ns.adobe.com/exif/1.0/}DateTimeOriginal",
)
_DIGITIZED = (
    "{http://ns.adobe.com/exif/1.0/}DateTimeDigitized",
    "{http://ns.adobe.com/xap/1.0/}CreateDate",
)
_PARTS_OF_8859 = {b"B": 2, b"C": 3, b"D": 4, b"L": 5, b"G": 6, b"F": 7, b"H": 8, b"M": 9}  # by ISO 2022
_APPLE = "com.apple.quicktime."


def read_header(path: Path) -> Header:
    """Return what a file says of itself; what is missing or makes no sense is left out, and nothing is raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = _of_video(path) if is_video_name(path.name) else _of_image(path)
    except Exception:  # damaged files make readers raise almost any error
        return {}
    return {name: value for name, value in header.items() if value not in (None, "", [])}


def _of_image(path: Path) -> Header:
    kind, exif = suffix_kind(path.name), Image.Exif()
    if kind == "JPEG XL":  # which Pillow would decode
        boxes = dict(boxes_of(path.read_bytes()))
        block = boxes.get(b"Exif", b"")
        exif.load(block if block[:2] in (b"II", b"MM") else block[4:])  # some writers leave the offset out
        return _joined(exif, boxes.get(b"xml ", b""), None)
    if kind == "camera raw":
        with suppress(SyntaxError), path.open("rb") as file:  # most are TIFF files
            exif.load_from_fp(file)
            return _joined(exif, exif.get(ExifTags.Base.XMLPacket, b""), None)
    with opened_image(path) as image:
        xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
        # The method of PNG would decode an image without EXIF.
        return _joined(Image.Image.getexif(image), xmp, image)


def _joined(exif: Image.Exif, xmp: bytes | str, image: Image.Image | None) -> Header:
    """Return what EXIF, XMP and the IPTC of an image say; XMP comes before IPTC, whose encoding is a guess."""
    taken, texts, iptc = exif.get_ifd(ExifTags.IFD.Exif), _xmp(xmp), _iptc(image)
    shot = [
        _date(taken.get(ExifTags.Base.DateTimeOriginal), taken.get(ExifTags.Base.OffsetTimeOriginal)),
        *(_date(value) for name in _CREATED for value in texts(name)),
        *(_date(" ".join((day, *iptc(60)[:1]))) for day in iptc(55)),
        _date(image.info.get("Creation Time")) if isinstance(image, PngImageFile) else None,
    ]
    scanned = [
        _date(taken.get(ExifTags.Base.DateTimeDigitized), taken.get(ExifTags.Base.OffsetTimeDigitized)),
        *(_date(value) for name in _DIGITIZED for value in texts(name)),
    ]
    described = _text(_stored(exif.get(ExifTags.Base.ImageDescription)))
    own = "" if _OF_CAMERA.fullmatch(described) else described
    return {
        "taken": _first(shot, scanned),
        "camera": _camera(_stored(exif.get(ExifTags.Base.Make)), _stored(exif.get(ExifTags.Base.Model))),
        **_place(exif.get_ifd(ExifTags.IFD.GPSInfo)),
        "title": next(iter((*texts(f"{_DC}title"), *iptc(5))), ""),
        "description": next(iter((*texts(f"{_DC}description"), *iptc(120))), own),
        "keywords": list(dict.fromkeys((*texts(f"{_DC}subject"), *iptc(25))))[:_MOST],
    }


def _of_video(path: Path) -> Header:
    with opened_video(str(path)) as container:
        tags: dict[str, str] = {}
        for held in (*(stream.metadata for stream in container.streams.video), container.metadata):
            tags |= {name.lower(): value for name, value in held.items()}
    at = _PLACE.match(tags.get(f"{_APPLE}location.iso6709") or tags.get("location") or "")
    return {
        "taken": _first([_date(tags.get(f"{_APPLE}creationdate"))], [_date(tags.get("creation_time"))]),
        "camera": _camera(tags.get(f"{_APPLE}make"), tags.get(f"{_APPLE}model")),
        **(_coordinates(float(at[1]), float(at[2])) if at else {}),
        "title": _text(tags.get("title")),
        "description": _text(tags.get("description") or tags.get("comment")),
        "keywords": [word for each in tags.get("keywords", "").split(",") if (word := _text(each))][:_MOST],
    }


def _first(*ranks: Sequence[str | None]) -> str | None:
    """Return the first date understood in the strongest rank that states one; a weaker one may mean another day."""
    for rank in ranks:
        if stated := [date for date in rank if date is not None]:
            return next(filter(None, stated), None)
    return None


def _date(value: object, offset: object = "") -> str | None:
    """Return a date as ISO 8601, as far as it is known; "" if it is not understood, None if none is stated.

    UTC (of videos, mostly) becomes the time of this machine's zone.
    """
    text = _text(value)
    match = _DATE.fullmatch(text)
    known = [*takewhile(lambda part: part not in (None, "00"), match.groups()[:3])] if match else []
    written = "-".join(known)
    if match and len(known) == 3 and match[4]:
        written += f"T{match[4]}:{match[5] or '00'}:{match[6] or '00'}"
    if not _DIGITS.search(text) or written.startswith(_UNSET):
        return None
    try:
        time = datetime.fromisoformat(written + "0000-01-01"[len(written) :])
    except ValueError:
        return ""
    if match is None or len(written) <= len("2024-06-01"):
        return time.isoformat()[: len(written)]
    if match[7] == "Z":
        return time.replace(tzinfo=UTC).astimezone().isoformat()
    zone = match[7] or _text(offset)
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    return time.isoformat() + (zone if _OFFSET.fullmatch(zone) else "")


def _camera(maker: object, model: object) -> str:
    """Return maker and model as one would say them: "NIKON D850", not "NIKON CORPORATION NIKON D850"."""
    made, named = _COMPANY.sub("", _text(maker)), _text(model)
    says_maker = named.casefold().partition(" ")[0] in made.casefold().split()
    return named if says_maker else f"{made} {named}".strip()


def _place(gps: Mapping[int, Any]) -> Header:
    """Return latitude and longitude of EXIF's degrees, minutes and seconds."""
    coordinates = []
    for tag, most, signs in ((ExifTags.GPS.GPSLatitude, 90, "NS"), (ExifTags.GPS.GPSLongitude, 180, "EW")):
        parts, side = gps.get(tag), _text(gps.get(tag - 1)).upper()[:1]
        if not isinstance(parts, Sequence) or len(parts) != 3 or side not in tuple(signs):
            return {}
        degrees = sum(float(part) / 60**place for place, part in enumerate(parts))
        if not 0 <= degrees <= most:
            return {}
        coordinates.append(degrees if side == signs[0] else -degrees)
    return _coordinates(*coordinates)


def _coordinates(latitude: float, longitude: float) -> Header:
    """Return coordinates to a tenth of a metre; none where a receiver without reception has noted zeros."""
    known = math.isfinite(latitude) and math.isfinite(longitude) and (latitude, longitude) != (0, 0)
    if not known or abs(latitude) > 90 or abs(longitude) > 180:
        return {}
    return {"latitude": round(latitude, 6), "longitude": round(longitude, 6)}


def _stored(value: object) -> object:
    """Return the bytes of a text of EXIF; Pillow takes every one for Latin-1, whatever it is written in."""
    return value.encode("latin-1", "ignore") if isinstance(value, str) else value


def _text(value: object) -> str:
    """Return a text in one line, without what files leave behind its end; "" for what is none.

    Bytes are UTF-8 (which EXIF 3.0 names), or else Windows-1252, of which the letters of Latin-1 are a part. A
    byte-order mark says that they are UTF-16.
    """
    if isinstance(value, bytes):
        if value.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return _text(value.decode("utf-16", "replace"))
        stored = value.removeprefix(codecs.BOM_UTF8).partition(b"\0")[0]
        try:
            return _text(stored.decode("utf-8"))
        except UnicodeDecodeError:
            return _text(stored.decode("cp1252", "replace"))
    if not isinstance(value, str):
        return ""
    text = value.partition("\0")[0].encode("utf-8", "replace").decode()
    plain = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(plain.split())[:_LONGEST]


def _xmp(packet: bytes | str) -> Callable[[str], list[str]]:
    """Return what gives the values of a property of XMP, by its name with its namespace."""
    text = packet.decode("utf-8", "replace") if isinstance(packet, bytes) else packet
    elements: list[ElementTree.Element] = []
    if "<!DOCTYPE" not in text and "<!ENTITY" not in text:
        with suppress(ElementTree.ParseError):
            elements = [*ElementTree.fromstring(text.strip("\ufeff\0 \n\r\t")).iter()]

    def values(name: str) -> list[str]:
        texts = [element.get(name) for element in elements]
        named = [element for element in elements if element.tag == name]
        texts += [each.text for element in named for each in (element, *element.iter(f"{_RDF}li"))]
        return list(filter(None, map(_text, texts)))

    return values


def _iptc(image: Image.Image | None) -> Callable[[int], list[str]]:
    """Return what gives the texts of a data set of IPTC's second record, by its number."""
    held: Mapping[tuple[int, int], bytes | list[bytes]] = {}
    if isinstance(image, JpegImageFile | TiffImageFile):
        with suppress(Exception):  # what is wrong with one block says nothing of the others
            held = IptcImagePlugin.getiptcinfo(image) or {}

    coded = held.get((1, 90), b"")
    part = (
        _PARTS_OF_8859.get(coded[-1:])
        if isinstance(coded, bytes) and coded[1:2] in (b"-", b".", b"/")
        else None
    )

    def texts(number: int) -> list[str]:
        values = held.get((2, number), [])
        stored = values if isinstance(values, list) else [values]
        decoded = [each.decode(f"iso8859-{part}", "replace") for each in stored] if part else stored
        return list(filter(None, map(_text, decoded)))

    return texts
