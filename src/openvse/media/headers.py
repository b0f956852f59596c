"""The header of a photograph or video: its time, place and camera, its people, and its words.

EXIF (CIPA DC-008) comes from Pillow, and so does IPTC (IIM 4). Python's own parser reads XMP (ISO 16684-1), but no
document that declares entities. FFmpeg finds the facts of videos in the container. ``ranks`` decides which source
counts, as the Metadata Working Group does (Guidelines 2.0). EXIF, XMP and the texts of a PNG are read wherever the
container of the file keeps them.
"""

from __future__ import annotations

import codecs
import hashlib
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from threading import Lock
from typing import Any
from xml.etree import ElementTree

from PIL import ExifTags, Image, IptcImagePlugin
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from openvse.errors import DataError
from openvse.media.formats import MOST_XMP
from openvse.media.images import opened_image
from openvse.media.names import escaped, format_of, is_video_name
from openvse.media.ranks import FactSource, Header, Said
from openvse.media.videos import opened_video

_MOST_TAGS = 200_000  # of a packet; each takes 100 bytes
_CHUNKS, _LARGEST_CHUNK = 200_000, 1 << 26  # of a PNG: the number looked at, and bytes of one that is read
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")
_PLAIN = b"http://ns.adobe.com/xap/1.0/\0"
_REST = re.compile(rb"http://ns\.adobe\.com/xmp/extension/\0(\w{32})(.{4})(.{4})(.+)", re.DOTALL)
_IDENTIFIER = re.compile(rb"\b\w{32}\b")
_AROUND, _DECLARATION = b"\xef\xbb\xbf\0 \n\r\t", re.compile(rb"^<\?xml\s.*?\?>", re.DOTALL)


@contextmanager
def held_in(path: Path) -> Iterator[tuple[Image.Exif, bytes | str, Image.Image | None]]:
    """Open a file for its EXIF, its packet of XMP, and what Pillow has read of it. No pixel is decoded.

    A damaged file raises almost any error.
    """
    known = format_of(path.name)
    if known is not None and known.facts is not None and (held := known.facts(path)) is not None:
        yield *held, None
        return
    with opened_image(path) as image:
        if isinstance(image, PngImageFile):
            _read_behind_pixels(image)
            _read_profiles(image.info)
        xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
        if isinstance(image, JpegImageFile):
            xmp = _extended(xmp, image.applist)
        # The method of PNG would decode an image without EXIF.
        yield Image.Image.getexif(image), xmp, image


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


def _read_profiles(info: dict[Any, Any]) -> None:
    """Read the EXIF and XMP that programs wrote into a PNG as lines of digits, before it had parts for them."""
    for name in ("xmp", "app1", "APP1"):
        with suppress(ValueError):
            lines = str(info.get(f"Raw profile type {name}", "")).split("\n")
            if data := bytes.fromhex("".join(lines[3:])):
                info.setdefault("exif" if data.startswith(b"Exif\0") else "xmp", data.removeprefix(_PLAIN))


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


_DATE = re.compile(  # a year, month or day alone too; EXIF leaves blanks for the rest, and IPTC writes no separators
    r"(\d{4})(?:[-:/.]?(\d\d)(?:[-:/.]?(\d\d)(?:[ T](\d\d)(?::?(\d\d)(?::?(\d\d))?(?:\.\d+)?)?)?)?)?"
    r"\s*(Z|[+-]\d\d:?\d\d)?[-:/. ]*",
    re.ASCII,
)
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")
_PLACE = re.compile(r"([+-]\d{1,2}(?:\.\d+)?)([+-]\d{1,3}(?:\.\d+)?)")
_DIGITS = re.compile("[1-9]")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?(?:,(\d+(?:\.\d+)?))?\s*([NSEW])", re.IGNORECASE)
_NAMED_DATE = re.compile(  # a day without hyphens counts only behind the names of programs, or before a time
    r"(?:^|(?<!\d)\.|[^\w.]|_)[a-z]*((?:19|20)\d\d)(?P<hyphen>[-_.]?)(0[1-9]|1[0-2])(?P=hyphen)(0[1-9]|[12]\d|3[01])"
    r"(?:(?:[-_T. ]?|[ _](?:[^\d\s_]{1,9}[ _]){1,2})([01]\d|2[0-3]|\d(?=[-.:]))([-_.:]?)([0-5]\d)\6([0-5]\d)"
    r"(?:\.?\d{3})?(?!\d)(?:[ \xa0\u202f]?([ap])\.?m\b|(Z(?![a-z])|\+\d\d:?\d\d))?)?"
    r"(?(5)|(?!\d|(?<=\d{8})[a-z]|(?<=\.\d\d)\.\d))",  # no part of an id or a version: 20200101ab, 2020.01.01.2
    re.ASCII | re.IGNORECASE,
)
_BY_PROGRAM = re.compile(
    r"(IMG|VID|PXL|MVIMG|PANO|BURST|DSC|Screenshot|Screen|WhatsApp|signal|photo|video)", re.IGNORECASE
)
_FOLDER_OF_YEAR = re.compile(
    r"(?:(?:photos?|foto\w*|bilder|im[aá]genes|zdjęcia|obrázky|фото\w*)(?:['\u2019]s)? \w+ )?((?:19|20)\d\d)",
    re.IGNORECASE,
)
_FILED_DATE = re.compile(  # of a month or day, and then nothing or a name
    r"((?:19|20)\d\d)([-_.]?)(0[1-9]|1[0-2])(?:\2(0[1-9]|[12]\d|3[01]))?(?:$|[ _-]+(?=[^\W\d]))"
)
_TWO_DIGITS = re.compile(r"\d\d", re.ASCII)
_UNSET = ("0", "1904-01-01T00:00", "1970-01-01T00:00")  # what clocks show that were never set
_COMPANY = re.compile(r",? (corporation|corp|company|co|ltd|inc|gmbh|ag|optical|imaging)\b\.?", re.IGNORECASE)
_OF_CAMERA = re.compile(r".*DIGITAL CAMERA|SONY DSC|DCIM\b.*|SAMSUNG|default|Untitled")  # no descriptions
_LONGEST = 2000  # characters of a text
_FARTHEST = 0.5  # degrees of latitude from the middle of a town, about 55 km
_READS_PLACES = Lock()
_MOST = 200  # keywords
_RATED = (18246, 18249)  # what Windows notes in EXIF: stars, and stars as a percentage
_NOTED = {"title": 40091, "description": 40092, "keywords": 40094}  # and its texts, in UTF-16
_RDF, _DC = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}", "{http://purl.org/dc/elements/1.1/}"
_HOLDS_VALUE = {f"{_RDF}{each}" for each in ("Bag", "Seq", "Alt", "li", "Description", "value")}
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_EXIF, _XMP = "{http://ns.adobe.com/exif/1.0/}", "{http://ns.adobe.com/xap/1.0/}"
_TIFF, _REGION = "{http://ns.adobe.com/tiff/1.0/}", "{http://www.metadataworkinggroup.com/schemas/regions/}"
_PHOTOSHOP, _CORE = "{http://ns.adobe.com/photoshop/1.0/}", "{http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/}"
_CREATED = (f"{_PHOTOSHOP}DateCreated", f"{_EXIF}DateTimeOriginal")
_DIGITIZED = (f"{_EXIF}DateTimeDigitized", f"{_XMP}CreateDate")
_PLACES = (f"{_CORE}Location", *(f"{_PHOTOSHOP}{each}" for each in ("City", "State", "Country")))
_STARS_IN_PERCENT, _LABELS = "{http://ns.microsoft.com/photo/1.0/}Rating", "{http://darktable.sf.net/}colorlabels"
_COLORS = {"0": "Red", "1": "Yellow", "2": "Green", "3": "Blue", "4": "Purple"}  # of darktable
_TAGS = (  # each with the sign between its levels
    ("{http://ns.adobe.com/lightroom/1.0/}hierarchicalSubject", "|"),
    ("{http://www.digikam.org/ns/1.0/}TagsList", "/"),
)
_PEOPLE = (
    *(f"{{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}}Person{each}" for each in ("InImage", "Name")),
    "{http://ns.microsoft.com/photo/1.2/t/Region#}PersonDisplayName",
)
_IPTC_BLOCK, _IPTC_DIGEST = 0x0404, 0x0425  # resources of Photoshop
_DEFAULT = (None, "x-default")  # language of a text
_PARTS_OF_8859 = {b"B": 2, b"C": 3, b"D": 4, b"L": 5, b"G": 6, b"F": 7, b"H": 8, b"M": 9}  # by ISO 2022
_APPLE = "com.apple.quicktime."


def said_by(path: Path, folders: int = 0) -> list[Said]:
    """Return what the sources in a file say, its name (``IMG-20200101-WA0001.jpg``), and so many folders above it.

    Nothing is raised.
    """
    said: list[Said] = []
    with warnings.catch_warnings(), suppress(Exception):  # damaged files make readers raise almost any error
        warnings.simplefilter("ignore")
        said = _of_video(path) if is_video_name(path.name) else _of_image(path)
    filed = date_in_folders([*path.parts[-1 - folders : -1], path.stem])
    return [*said, Said(FactSource.NAME, named=[date_in_name(path.name)]), Said(FactSource.FOLDERS, named=[filed])]


def date_in_name(name: str) -> str | None:
    """Return the date that a camera, a phone or a messenger put into the name of a file, or None. See ``Said``.

    A name with several days, such as those of a journey, tells none, unless a clock or a program says which.

    Examples:
        >>> date_in_name("IMG-20200101-WA0001.jpg"), date_in_name("Screenshot 2023-05-31 at 6.30.00 PM.png")
        ('2020-01-01', '2023-05-31T18:30:00')
        >>> date_in_name("20191231.jpg"), date_in_name("COCO_val2014_000000391895.jpg")
        (None, None)
    """
    days = set()
    for match in _NAMED_DATE.finditer(name):
        year, hyphen, month, day, hour, _, minute, second, half, zone = match.groups("")
        clock = ""
        if hour:
            of_day = int(hour) % 12 + 12 * (half in "pP") if half and int(hour) <= 12 else int(hour)
            zone = zone.upper() or "Z" * name.startswith("PXL_")  # Google's camera writes no other zone
            clock = f"T{of_day:02}:{minute}:{second}{zone}"
        date = _date(f"{year}-{month}-{day}{clock}")
        if clock or _BY_PROGRAM.match(name):
            return date or None
        days |= {date} if hyphen else set()
    return (days.pop() or None) if len(days) == 1 else None


def date_in_folders(names: Sequence[str]) -> str | None:
    """Return the date by which folders, the uppermost first, and the start of a file's name are sorted, or None.

    Other digits, such as sizes, numbers and the years of devices, are no dates.

    Examples:
        >>> date_in_folders(["2023", "10", "11", "a"]), date_in_folders(["Fotos von 2002", "1985-07 Italy"])
        ('2023-10-11', '1985-07')
        >>> date_in_folders(["1920", "2000 dogs", "20191231", "2048-10-01", "Galaxy 2019", "2010-11"])
    """
    date, before = None, ""
    for left, name in reversed([*enumerate(reversed(names))]):
        is_folder, written = left > 0, ""
        if is_folder and len(before) in (4, 7) and _TWO_DIGITS.fullmatch(name):
            written = f"{before}-{name}"
        elif is_folder and (of_year := _FOLDER_OF_YEAR.fullmatch(name)) and name != "1920":  # a width of pictures
            written = of_year[1]
        elif (match := _FILED_DATE.match(name)) and (match.end() < len(name) or (is_folder and match[2])):
            year, sign, month, day = match.groups("")
            written = "-".join(filter(None, (year, month, day))) if sign or (day and is_folder) else ""
        before = _date(written) or "" if written[:4] <= str(datetime.now().year) else ""
        date = before or date
    return date


def _of_image(path: Path) -> list[Said]:
    """Return what EXIF, IPTC, XMP and the text of a PNG say."""
    with held_in(path) as (exif, packet, image):
        made = image.info.get("Creation Time") if isinstance(image, PngImageFile) else None
        said = [_of_exif(exif), _of_windows(exif), _of_iptc(image), Said(FactSource.PNG, shot=[_date(made)])]
    with suppress(DataError):
        said.append(read_xmp(packet))
    return said


def _of_exif(exif: Image.Exif) -> Said:
    taken = exif.get_ifd(ExifTags.IFD.Exif)
    described = plain_text(_stored(exif.get(ExifTags.Base.ImageDescription)))
    facts = {
        "camera": _camera(_stored(exif.get(ExifTags.Base.Make)), _stored(exif.get(ExifTags.Base.Model))),
        **_place(exif.get_ifd(ExifTags.IFD.GPSInfo)),
        "description": "" if _OF_CAMERA.fullmatch(described) else described,
    }
    shot, scanned = (
        [_date(taken.get(ExifTags.Base[f"DateTime{each}"]), taken.get(ExifTags.Base[f"OffsetTime{each}"]))]
        for each in ("Original", "Digitized")
    )
    return Said(FactSource.EXIF, facts, shot, scanned)


def _of_windows(exif: Image.Exif) -> Said:
    """Return the stars and texts that Windows keeps in EXIF. Cameras write a rating of 0, which says nothing."""
    stars, percent = (plain_text(str(exif.get(tag, ""))) for tag in _RATED)
    facts: dict[str, object] = {"rating": _rating(stars) or _stars_of(percent)}
    for key, tag in _NOTED.items():
        held = exif.get(tag)
        text = plain_text(codecs.BOM_UTF16_LE + held) if isinstance(held, bytes) else ""
        facts[key] = [*filter(None, map(str.strip, text.split(";")))][:_MOST] if key == "keywords" else text
    return Said(FactSource.WINDOWS, facts)


def read_xmp(packet: bytes | str, source: FactSource = FactSource.XMP) -> Said:
    """Return what a packet of XMP says. Raise DataError, with the reason, if it is none or might harm."""
    elements = elements_of(packet)
    own = [node for each in elements if each.tag == f"{_RDF}RDF" for node in each] or elements

    def texts(*names: str, among: Sequence[ElementTree.Element] = own) -> list[str]:
        stated = [each for name in names for node in among for each in _values(node, name)]
        ranked = sorted(stated, key=lambda each: each[0] not in _DEFAULT)
        return [*islice(dict.fromkeys(filter(None, (plain_text(text) for _, text in ranked))), _MOST)]

    def first(*names: str) -> str:
        return next(iter(texts(*names)), "")

    faces = [each for each in elements if {*texts(f"{_REGION}Type", among=[each])} <= {"Face"}]
    people = *texts(f"{_REGION}Name", among=faces), *texts(*_PEOPLE, among=elements)
    tags = [each.replace(sign, "|") for name, sign in _TAGS for each in texts(name)]
    colors = [_COLORS[each] for each in texts(_LABELS) if each in _COLORS]
    own_rating = _rating(first(f"{_XMP}Rating"))
    facts = {
        "camera": _camera(first(f"{_TIFF}Make"), first(f"{_TIFF}Model")),
        **_place_of(first(f"{_EXIF}GPSLatitude"), first(f"{_EXIF}GPSLongitude")),
        "place": [text for name in _PLACES for text in texts(name)[:1]],
        "title": first(f"{_DC}title"),
        "headline": first(f"{_PHOTOSHOP}Headline"),
        "description": first(f"{_DC}description"),
        "alt": first(f"{_CORE}AltTextAccessibility"),
        "keywords": texts(f"{_DC}subject"),
        "tags": list(dict.fromkeys(tags))[:_MOST],
        "people": list(dict.fromkeys(people))[:_MOST],
        "rating": own_rating if own_rating is not None else _stars_of(first(_STARS_IN_PERCENT)),
        "color_label": first(f"{_XMP}Label") or (colors[0] if len(colors) == 1 else colors),
    }
    shot, scanned = ([*map(_date, texts(*names))] for names in (_CREATED, _DIGITIZED))
    return Said(source, facts, shot, scanned)


def _values(node: ElementTree.Element, name: str) -> Iterator[tuple[str | None, str]]:
    """Yield the values of a property, each with its language: one text or those of a list, qualified or not.

    What else a value holds, such as the properties of another picture, is passed over.
    """
    if text := node.get(name):
        yield None, text
    waiting: list[tuple[ElementTree.Element, str | None]]
    waiting = [(each, None) for each in reversed(node) if each.tag == name]
    while waiting:
        each, language = waiting.pop()
        language = each.get(_LANGUAGE, language)
        yield from ((language, text) for text in (each.get(f"{_RDF}value"), each.text) if text)
        waiting += [(inside, language) for inside in reversed(each) if inside.tag in _HOLDS_VALUE]


def _stars_of(percent: str) -> int | None:
    """Return the stars of a percentage by Windows, which writes 1, 25, 50, 75 and 99, or None for other texts."""
    with suppress(ValueError):
        return round((float(percent) + 24) / 25) if 1 <= float(percent) <= 100 else None
    return None


def _rating(stated: str) -> float | None:
    """Return a rating from 0 to 5, or -1 for a rejected image, or None for other texts."""
    with suppress(ValueError):
        if (rating := float(stated)) == -1 or 0 <= rating <= 5:
            return int(rating) if rating == int(rating) else rating
    return None


def _of_video(path: Path) -> list[Said]:
    with opened_video(str(path)) as container:
        held = (*(stream.metadata for stream in container.streams.video), container.metadata)
        tags = {name.lower(): value for each in held for name, value in each.items()}
    at = _PLACE.match(tags.get(f"{_APPLE}location.iso6709") or tags.get("location") or "")
    facts = {
        "camera": _camera(tags.get(f"{_APPLE}make"), tags.get(f"{_APPLE}model")),
        **(coordinates_of(float(at[1]), float(at[2])) if at else {}),
        "title": plain_text(tags.get("title")),
        "description": plain_text(tags.get("description") or tags.get("comment")),
        "keywords": [*filter(None, map(plain_text, tags.get("keywords", "").split(",")))][:_MOST],
    }
    shot = [_date(tags.get(each)) for each in (f"{_APPLE}creationdate", "creation_time")]
    return [Said(FactSource.CONTAINER, facts, shot)]


def _date(value: object, offset: object = "") -> str | None:
    """Return a date as ``Said`` has it: "" if it is not understood, None if there is none."""
    text = plain_text(value)
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
        return f"{time.isoformat()}Z"
    zone = match[7] or plain_text(offset)
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    return time.isoformat() + (zone if _OFFSET.fullmatch(zone) else "")


def _camera(maker: object, model: object) -> str:
    """Return maker and model as people say them: "NIKON D850", not "NIKON CORPORATION NIKON D850"."""
    made, named = _COMPANY.sub("", plain_text(maker)), plain_text(model)
    says_maker = named.casefold().partition(" ")[0] in made.casefold().split()
    return named if says_maker else f"{made} {named}".strip()


def _place(gps: Mapping[int, Any]) -> Header:
    """Return latitude and longitude of EXIF's degrees, minutes and seconds. The seconds may be missing."""
    written = []
    for tag in (ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLongitude):
        held = gps.get(tag)
        parts = held if isinstance(held, Sequence) else () if held is None else (held,)
        written.append((parts, plain_text(gps.get(tag - 1)).upper()[:1]))
    return _of_sixtieths(*written)


def _place_of(latitude: str, longitude: str) -> Header:
    """Return the place of XMP's texts, such as ``52,31.25N`` or ``52,31,15N``. Some programs write plain degrees."""
    matches = [_DEGREES.fullmatch(each) for each in (latitude, longitude)]
    if all(matches):
        return _of_sixtieths(*(([*filter(None, each.groups()[:3])], each[4].upper()) for each in matches if each))
    with suppress(ValueError):
        return coordinates_of(float(latitude), float(longitude))
    return {}


def _of_sixtieths(*written: tuple[Sequence[Any], str]) -> Header:
    """Return the coordinates of a latitude and a longitude: degrees, minutes and seconds, and the side of each."""
    coordinates = []
    for (parts, side), most, signs in zip(written, (90, 180), ("NS", "EW"), strict=True):
        if not 1 <= len(parts) <= 3 or side not in tuple(signs):
            return {}
        degrees = sum(float(part) / 60**place for place, part in enumerate(parts))
        if not 0 <= degrees <= most:
            return {}
        coordinates.append(degrees if side == signs[0] else -degrees)
    return coordinates_of(*coordinates)


def coordinates_of(latitude: float, longitude: float) -> Header:
    """Return coordinates to a tenth of a metre, or none if a receiver without reception has noted zeros."""
    known = math.isfinite(latitude) and math.isfinite(longitude) and (latitude, longitude) != (0, 0)
    if not known or abs(latitude) > 90 or abs(longitude) > 180:
        return {}
    return {"latitude": round(latitude, 6), "longitude": round(longitude, 6)}


def said_of_place(latitude: object, longitude: object) -> Said:
    """Return the names of a place on land, the narrowest first, by the extra ``places``, or nothing without it."""
    known = Said(FactSource.COORDINATES)
    if not isinstance(latitude, float) or not isinstance(longitude, float) or (gazetteer := _gazetteer()) is None:
        return known
    (found,) = gazetteer.query([(latitude, longitude)])
    east = abs(longitude - found["longitude"]) * math.cos(math.radians(latitude))
    if max(abs(latitude - found["latitude"]), east) > _FARTHEST:
        return known
    names = filter(None, (found.get(each) for each in ("city", "county", "state", "country")))
    return Said(FactSource.COORDINATES, {"place": [*dict.fromkeys(map(str, names))]})


def _gazetteer() -> Any:
    """Return the places that the package knows, which takes 2 s once, or None without it."""
    with _READS_PLACES:
        return _known_places()


@cache
def _known_places() -> Any:
    try:
        import reverse_geocode
    except ImportError:
        return None
    return reverse_geocode.GeocodeData()


def _stored(value: object) -> object:
    """Return the bytes of a text of EXIF, because Pillow takes every text for Latin-1."""
    return value.encode("latin-1", "ignore") if isinstance(value, str) else value


def plain_text(value: object) -> str:
    """Return a text in one line, without the bytes after its end, or "" if it is no text.

    Bytes are UTF-8 (which EXIF 3.0 names), or else Windows-1252, which includes the letters of Latin-1. A byte-order
    mark means UTF-16.
    """
    if isinstance(value, bytes):
        if value.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return plain_text(value.decode("utf-16", "replace"))
        stored = value.removeprefix(codecs.BOM_UTF8).partition(b"\0")[0]
        try:
            return plain_text(stored.decode("utf-8"))
        except UnicodeDecodeError:
            return plain_text(stored.decode("cp1252", "replace"))
    if not isinstance(value, str):
        return ""
    text = value.partition("\0")[0].encode("utf-8", "replace").decode()
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:_LONGEST]


def _of_iptc(image: Image.Image | None) -> Said:
    """Return what IPTC's second record says."""
    held: Mapping[tuple[int, int], bytes | list[bytes]] = {}
    if isinstance(image, JpegImageFile | TiffImageFile):
        with suppress(Exception):  # what is wrong with one block says nothing of the others
            held = IptcImagePlugin.getiptcinfo(image) or {}

    coded = held.get((1, 90))
    end = coded[-1:] if isinstance(coded, bytes) and coded[1:2] in (b"-", b".", b"/") else b""
    part = _PARTS_OF_8859.get(end)

    def texts(number: int) -> list[str]:
        values = held.get((2, number), [])
        stored = values if isinstance(values, list) else [values]
        decoded = [each.decode(f"iso8859-{part}", "replace") for each in stored] if part else stored
        return list(filter(None, map(plain_text, decoded)))

    facts = {
        "place": [text for number in (92, 90, 95, 101) for text in texts(number)[:1]],
        "title": next(iter(texts(5)), ""),
        "headline": next(iter(texts(105)), ""),
        "description": next(iter(texts(120)), ""),
        "keywords": list(dict.fromkeys(texts(25)))[:_MOST],
    }
    shot, scanned = (
        [_date(" ".join((day, *clocks[:1]))) for day in days]
        for days, clocks in ((texts(55), texts(60)), (texts(62), texts(63)))
    )
    return Said(FactSource.CHANGED_IPTC if _is_newer(image) else FactSource.IPTC, facts, shot, scanned)


def _is_newer(image: Image.Image | None) -> bool:
    """Return whether IPTC has changed since a program noted its digest, when it wrote the same into XMP."""
    blocks = image.info.get("photoshop") if image is not None else None
    if not isinstance(blocks, dict) or not isinstance(digest := blocks.get(_IPTC_DIGEST), bytes):
        return False
    block = blocks.get(_IPTC_BLOCK)
    return isinstance(block, bytes) and hashlib.md5(block, usedforsecurity=False).digest() != digest
