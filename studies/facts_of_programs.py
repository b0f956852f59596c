"""What other programs wrote: agreement with exiftool over 300 files of 12 formats, and searches by what they say.

python studies/facts_of_programs.py FILES

exiftool (https://exiftool.org; tried with 13.59) writes EXIF, IPTC, XMP and the tags of videos, which contradict each
other or are left out. Every third file has XMP in a sidecar, and every tenth a file of a Takeout. exiftool then reads
them, tag by tag. The value of a key is that of the first source of the documented table which states it, so each key of
openvse is compared with a reading that shares no line with it. The searches are conditions on an index of FILES,
beside it. Each is right if it finds all pictures that fit by exiftool's reading, and nothing else.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image

from openvse.indexing import Index, build_index
from openvse.indexing.conditions import allowed_items, parse_condition
from openvse.media.sidecars import read_facts
from openvse.output.table import Table
from openvse.runtime import OnnxModel

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.runtime.colour_export import write_export

COUNT = 300
FORMATS = "jpg png tif heic jpg jxl webp dng jpg mp4 avif png tif gif jpg jp2 heic webp png mov jpg avif tif jxl dng"
WRITERS = {"jpg": "JPEG", "tif": "TIFF", "dng": "TIFF", "heic": "HEIF", "jp2": "JPEG2000"}
HOLD_IPTC = "jpg png tif jp2 dng"
PEOPLE = ("Grandma", "Jürgen Groß", "Zoë", "O'Neill", "Ana María", "山田太郎", "Łukasz", "Ivan", "Siân", "Bo")
CITIES = {
    "Berlin": (52.52, 13.405),
    "Tokyo": (35.676, 139.65),
    "Lima": (-12.046, -77.043),
    "Suva": (-18.124, 178.45),
    "Tromsø": (69.649, 18.955),
    "Apia": (-13.833, -171.767),
}
CAMERAS = {
    ("NIKON CORPORATION", "NIKON D850"): "NIKON D850",
    ("SONY", "ILCE-7M3"): "SONY ILCE-7M3",
    ("Apple", "iPhone 12"): "Apple iPhone 12",
    ("OLYMPUS IMAGING CORP.", "E-M5"): "OLYMPUS E-M5",
    ("", "X100"): "X100",
    ("", ""): None,
}
KEYS = (
    "taken", "camera", "latitude", "longitude", "place", "title", "headline", "description", "alt", "keywords", "tags",
    "people", "rating", "color_label",
)  # fmt: skip
CLOCK = re.compile(r"([\d:]+)(?: (\d\d:\d\d)(:\d\d)?(?:\.\d+)?(Z|[+-]\d\d:\d\d)?)?")  # of exiftool
STALE = "0" * 32
PLACES = ("Sublocation", "City", "ProvinceState", "CountryName")


class Draw(random.Random):
    """Draws what a file says; the same for each run."""

    def often(self, share: float) -> bool:
        """Return True for a share of the calls."""
        return self.random() < share

    def clock(self, *, is_exif: bool) -> str:
        """Return a moment, perhaps with a fraction, an offset, or (in XMP) only its year, month or day."""
        moment = datetime(1998, 1, 1, 8) + timedelta(minutes=self.randrange(14_000_000))
        text = f"{moment:%Y:%m:%d %H:%M:%S}"
        if is_exif:
            return text
        whole = self.choice([text, text[:-3], f"{text}.25"]) + self.choice(["", "+02:00", "-05:30", "Z"])
        return self.choice([whole] * 6 + [text[:4], text[:7], text[:10]])

    def some(self, *texts: str) -> list[str]:
        """Return a few texts, in any order."""
        return self.sample(texts, self.randint(1, len(texts)))


def of_exif(draw: Draw) -> list[str]:
    """Return the arguments of exiftool for EXIF, in either order of bytes."""
    said = [f"-ExifByteOrder={draw.choice(['II', 'MM'])}"]
    if draw.often(0.5):
        said += [f"-ExifIFD:DateTimeOriginal={draw.clock(is_exif=True)}"]
        said += [f"-ExifIFD:OffsetTimeOriginal={draw.choice(['+02:00', '-05:00', '+13:00', ''])}"]
        said += ["-ExifIFD:SubSecTimeOriginal=37"] * draw.often(0.3)
    if draw.often(0.3):
        said += [f"-ExifIFD:CreateDate={draw.clock(is_exif=True)}", "-ExifIFD:OffsetTimeDigitized=+01:00"]
    if draw.often(0.5):
        maker, model = draw.choice([*CAMERAS])
        said += [f"-IFD0:Make={maker}", f"-IFD0:Model={model}"]
    if draw.often(0.5):
        north, east = placed(draw)
        said += [f"-GPS:GPSLatitude={abs(north)}", f"-GPS:GPSLatitudeRef={'NS'[north < 0]}"]
        said += [f"-GPS:GPSLongitude={abs(east)}"] * draw.often(0.9) + [f"-GPS:GPSLongitudeRef={'EW'[east < 0]}"]
    if draw.often(0.3):
        said += [f"-IFD0:ImageDescription={draw.choice(['Grüße of exif', 'OLYMPUS DIGITAL CAMERA', '  '])}"]
    said += [f"-IFD0:Rating={draw.choice([0, 1, 3, 5])}"] * draw.often(0.3)
    said += [f"-IFD0:RatingPercent={draw.choice([0, 1, 25, 50, 75, 99])}"] * draw.often(0.3)
    said += ["-IFD0:XPTitle=Straße von Windows 雪"] * draw.often(0.3)
    said += ["-IFD0:XPComment=Łódź of Windows"] * draw.often(0.3)
    return said + ["-IFD0:XPKeywords=" + ";".join(draw.some("of Windows", "Schnee", "雪", "o; k"))] * draw.often(0.3)


def placed(draw: Draw) -> tuple[float, float]:
    """Return a place near one of the cities."""
    north, east = draw.choice([*CITIES.values()])
    return round(north + draw.uniform(-0.3, 0.3), 6), round(east + draw.uniform(-0.3, 0.3), 6)


def of_iptc(draw: Draw) -> list[str]:
    """Return the arguments of exiftool for IPTC, in UTF-8 or Latin-1, with a digest that fits, is stale, or is none."""
    is_plain, said = draw.often(0.5), list[str]()
    said += [] if is_plain else ["-charset", "iptc=UTF8", "-IPTC:CodedCharacterSet=UTF8"]
    word = "Straße" if is_plain else "Łódź 雪"
    if draw.often(0.5):
        said += [f"-IPTC:DateCreated={draw.clock(is_exif=True)[:10]}"]
        said += [f"-IPTC:TimeCreated=10:30:00{draw.choice(['+00:00', '-03:00'])}"] * draw.often(0.7)
    said += ["-IPTC:DigitalCreationDate=2001:02:03"] * draw.often(0.2)
    for tag, text in (
        ("ObjectName", "title"), ("Headline", "headline"), ("Caption-Abstract", "caption"), ("Sub-location", "wharf"),
        ("City", "city"), ("Province-State", "state"), ("Country-PrimaryLocationName", "country"),
    ):  # fmt: skip
        said += [f"-IPTC:{tag}={word} of iptc {text}"] * draw.often(0.5)
    said += [f"-IPTC:Keywords={each}" for each in draw.some("of iptc", word, "a, b")] * draw.often(0.5)
    digest = draw.choice(["new", STALE, ""])
    return said + [f"-Photoshop:IPTCDigest={digest}"] * bool(digest)


def of_xmp(draw: Draw, name: str) -> list[str]:
    """Return the arguments of exiftool for XMP, as elements or attributes, that carries a name in its texts."""
    said = ["-api", f"Compact={draw.choice(['', 'Shorthand', 'Shorthand,OneDesc'])}"]
    for tag in ("photoshop:DateCreated", "exif:DateTimeOriginal", "exif:DateTimeDigitized", "xmp:CreateDate"):
        said += [f"-XMP-{tag}={draw.clock(is_exif=False)}"] * draw.often(0.2)
    if draw.often(0.3):
        maker, model = draw.choice([*CAMERAS])
        said += [f"-XMP-tiff:Make={maker}", f"-XMP-tiff:Model={model}"]
    if draw.often(0.4):
        north, east = placed(draw)
        said += [f"-XMP-exif:GPSLatitude={north}"] + [f"-XMP-exif:GPSLongitude={east}"] * draw.often(0.8)
    for tag in ("iptcCore:Location", "photoshop:City", "photoshop:State", "photoshop:Country", "photoshop:Headline"):
        said += [f"-XMP-{tag}=Łódź of {name} {tag[-8:]}"] * draw.often(0.3)
    for tag in ("LocationShown", "LocationCreated"):
        told = ",".join(f"{each}=Ærø of {name} {each} {tag}" for each in PLACES if draw.often(0.5))
        said += [f"-XMP-iptcExt:{tag}={{{told}}}"] * bool(told and draw.often(0.3))
    for tag in ("dc:Title", "dc:Description", "iptcCore:AltTextAccessibility"):
        if draw.often(0.5):
            said += [f"-XMP-{tag}-de=Grüße von {name}"] * draw.often(0.5)
            said += [f"-XMP-{tag}=雪 & <snow> of {name}"] * draw.often(0.8)
    words = draw.some(f"of {name}", "雪", "a, b", "Grüße & <x>")
    said += [f"-XMP-dc:Subject={each}" for each in words] * draw.often(0.5)
    said += [f"-XMP-lr:HierarchicalSubject={each}" for each in draw.some("places|Łódź", "AC/DC|live")] * draw.often(0.3)
    said += [f"-XMP-digiKam:TagsList={each}" for each in draw.some("places/Oslo", "a|b")] * draw.often(0.3)
    said += [f"-XMP-xmp:Rating={draw.choice([-1, 0, 1, 3, 3.5, 5])}"] * draw.often(0.4)
    said += [f"-XMP-microsoft:RatingPercent={draw.choice([1, 25, 50, 75, 99])}"] * draw.often(0.3)
    said += [f"-XMP-xmp:Label={draw.choice(['Red', 'Grün', 'To Do'])}"] * draw.often(0.4)
    return said + people_of(draw)


def people_of(draw: Draw) -> list[str]:
    """Return the arguments for people: faces, among other regions, and the three properties with names."""
    said = []
    if draw.often(0.4):
        faces = [(each, draw.choice(["Face", "Face", "Pet", "Focus"])) for each in draw.some(*PEOPLE[:4])]
        listed = ",".join(f"{{Name={each},Type={kind}}}" for each, kind in faces)
        said += [f"-XMP-mwg-rs:RegionInfo={{RegionList=[{listed}]}}"]
    said += [f"-XMP-iptcExt:PersonInImage={each}" for each in draw.some(*PEOPLE[2:6])] * draw.often(0.3)
    for tag, form in (
        ("XMP-iptcExt:PersonInImageWDetails=", "{{PersonName={}}}"),
        ("XMP-MP:RegionInfoMP=", "{{PersonDisplayName={}}}"),
    ):
        listed = ",".join(form.format(each) for each in draw.some(*PEOPLE[4:]))
        listed = f"[{listed}]" if "WDetails" in tag else f"{{Regions=[{listed}]}}"
        said += [f"-{tag}{listed}"] * draw.often(0.2)
    return said


def of_container(draw: Draw) -> list[str]:
    """Return the arguments for the tags of a video: Apple's keys, those of iTunes, or those of cameras."""
    said = [f"-QuickTime:CreateDate={draw.clock(is_exif=True)}"] * draw.often(0.5)
    group, keywords = draw.choice([("Keys", "Keywords"), ("ItemList", "Keyword"), ("UserData", "")])
    dated = "CreationDate" if group == "Keys" else "ContentCreateDate"
    said += [f"-{group}:{dated}={draw.clock(is_exif=True)}{draw.choice(['+09:00', '-05:00'])}"] * draw.often(0.5)
    for tag in ("Title", "Description", "Comment"):
        said += [f"-{group}:{tag}=Łódź of {group} {tag}"] * draw.often(0.4)
    said += [f"-{group}:{keywords}=" + ", ".join(draw.some("雪", "snow"))] * (draw.often(0.5) and keywords != "")
    if group != "ItemList" and draw.often(0.5):
        maker, model = draw.choice([*CAMERAS])
        said += [f"-{group}:Make={maker}", f"-{group}:Model={model}"]
    north, east = placed(draw)
    return said + [f"-{group}:GPSCoordinates={round(north, 3)} {round(east, 3)} 30"] * draw.often(0.5)


def of_takeout(draw: Draw, name: str) -> dict[str, Any]:
    """Return a file of a Takeout."""
    north, east = placed(draw)
    moment = datetime.strptime(draw.clock(is_exif=True), "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    entry = {"title": name, "photoTakenTime": {"timestamp": str(int(moment.timestamp()))}}
    more = {
        "description": "Łódź of Takeout",
        "geoData": {"latitude": north, "longitude": east, "altitude": 0.0},
        "people": [{"name": each} for each in draw.some(*PEOPLE[:3])],
    }
    return {**entry, **{key: value for key, value in more.items() if draw.often(0.5)}}


def write(folder: Path) -> list[Path]:
    """Write the files and their sidecars in one run of exiftool, and return the files."""
    folder.mkdir(parents=True)
    lines, kinds = [], FORMATS.split()
    paths = [folder / f"{number:03d}.{kinds[number % len(kinds)]}" for number in range(COUNT)]
    for number, path in enumerate(paths):
        draw, suffix, own = Draw(number), path.suffix[1:], list[str]()
        make(path)
        if suffix in ("mp4", "mov"):
            own = of_container(draw)
        elif suffix != "gif":
            own = of_exif(draw)
        own += of_iptc(draw) if suffix in HOLD_IPTC and draw.often(0.6) else []
        own += [f"-PNG:CreationTime={draw.clock(is_exif=True)}"] * (suffix == "png" and draw.often(0.3))
        own += ["-PNG:Title=Łódź of png", "-PNG:Description=雪 of png"] * (suffix == "png" and draw.often(0.3))
        own += of_xmp(draw, "xmp") if draw.often(0.6) else []
        common = ["-n", "-m", "-q", "-charset", f"exif={charset_of(path)}", "-overwrite_original"]
        lines += [*common, *own, str(path), "-execute"]
        if number % 3 == 0:
            beside = path.with_name(f"{path.name}.xmp") if draw.often(0.5) else path.with_suffix(".xmp")
            lines += [*common, *of_xmp(draw, "sidecar"), str(beside), "-execute"]
        if number % 10 == 1:
            path.with_name(f"{path.name}.json").write_text(json.dumps(of_takeout(draw, path.name)))
    done = subprocess.run(["exiftool", "-@", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)
    print(done.stderr, file=sys.stderr)
    return paths


def make(path: Path) -> None:
    """Write a picture or a video that says nothing."""
    import pillow_heif
    import pillow_jxl  # noqa: F401 - it makes itself known to Pillow

    pillow_heif.register_heif_opener()
    image, suffix = Image.new("RGB", (64, 48), (200, 20, 20)), path.suffix[1:]
    if suffix not in ("mp4", "mov"):
        image.save(path, WRITERS.get(suffix, suffix.upper()))
        return
    import av

    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(5):
            video.mux(stream.encode(av.VideoFrame.from_image(image)))
        video.mux(stream.encode())


def charset_of(path: Path) -> str:
    """Return the letters in which EXIF is written: of every fourth file those of Windows."""
    return "UTF8" if int(path.stem) % 4 else "Latin"


def told(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Return all that exiftool reads of the files and sidecars, by their names."""
    read = {}
    for charset in ("UTF8", "Latin"):
        some = [each for path in paths if charset_of(path) == charset for each in (path, *sidecars_of(path))]
        words = ["exiftool", "-json", "-G1", "-n", "-struct", "-a", "-charset", f"exif={charset}", *map(str, some)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        read |= {Path(each["SourceFile"]).name: each for each in json.loads(done.stdout)}
    return read


Read = dict[str, Any]


def texts(read: Read, *tags: str) -> list[str]:
    """Return the values of tags, each once: a list of one tag has several."""
    values = [each for tag in tags for each in _listed(read.get(tag))]
    return [*dict.fromkeys(" ".join(str(each).split()) for each in values if str(each).strip())]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def first(read: Read, *tags: str) -> str | None:
    """Return the first value of the first tag that has one, in German if in no other language."""
    return next(iter(texts(read, *tags, *(f"{tag}-de" for tag in tags))), None)


def camera(read: Read, maker: str, model: str) -> str | None:
    """Return the camera as people say it."""
    return CAMERAS[first(read, maker) or "", first(read, model) or ""]


def number_of(text: str | None) -> float | None:
    """Return a number, or None."""
    return None if text is None else float(text)


def at(north: Any, east: Any) -> dict[str, Any]:
    """Return a place, of which both coordinates have to be known."""
    return {} if north is None or east is None else {"latitude": float(north), "longitude": float(east)}


def stars(percent: str | None) -> float | None:
    """Return stars of the five percentages that Windows writes."""
    return {1: 1, 25: 2, 50: 3, 75: 4, 99: 5}.get(int(percent or 0))


def by_xmp(read: Read) -> dict[str, Any]:
    """Return the keys by exiftool's tags of XMP."""
    faces = [each for each in read.get("XMP-mwg-rs:RegionInfo", {}).get("RegionList", []) if each.get("Type") == "Face"]
    details = _listed(read.get("XMP-iptcExt:PersonInImageWDetails"))
    regions = read.get("XMP-MP:RegionInfoMP", {}).get("Regions", [])
    named = [each.get("Name") for each in faces] + texts(read, "XMP-iptcExt:PersonInImage")
    named += [each["PersonName"] for each in details] + [each["PersonDisplayName"] for each in regions]
    shown, made = (next(iter(_listed(read.get(f"XMP-iptcExt:Location{each}"))), {}) for each in ("Shown", "Created"))
    own = ("XMP-iptcCore:Location", "XMP-photoshop:City", "XMP-photoshop:State", "XMP-photoshop:Country")
    places = ([first(read, tag) for tag in own], *([each.get(part) for part in PLACES] for each in (shown, made)))
    levels = [each.replace("/", "|") for each in texts(read, "XMP-digiKam:TagsList")]
    rating = number_of(first(read, "XMP-xmp:Rating"))
    return {
        "camera": camera(read, "XMP-tiff:Make", "XMP-tiff:Model"),
        **at(first(read, "XMP-exif:GPSLatitude"), first(read, "XMP-exif:GPSLongitude")),
        "place": next(filter(None, ([*filter(None, each)] for each in places)), []),
        "title": first(read, "XMP-dc:Title"),
        "headline": first(read, "XMP-photoshop:Headline"),
        "description": first(read, "XMP-dc:Description"),
        "alt": first(read, "XMP-iptcCore:AltTextAccessibility"),
        "keywords": texts(read, "XMP-dc:Subject"),
        "tags": [*dict.fromkeys([*texts(read, "XMP-lr:HierarchicalSubject"), *levels])],
        "people": [*dict.fromkeys(named)],
        "rating": stars(first(read, "XMP-microsoft:RatingPercent")) if rating is None else rating,
        "color_label": first(read, "XMP-xmp:Label"),
        "shot": texts(read, "XMP-photoshop:DateCreated") + texts(read, "XMP-exif:DateTimeOriginal"),
        "scanned": texts(read, "XMP-exif:DateTimeDigitized") + texts(read, "XMP-xmp:CreateDate"),
    }


def by_exif(read: Read) -> dict[str, Any]:
    """Return the keys by exiftool's tags of EXIF."""
    degrees = (first(read, f"GPS:GPS{each}") for each in ("Latitude", "Longitude"))
    signs = ("-" * (read.get(f"GPS:GPS{each}Ref") in ("S", "W")) for each in ("Latitude", "Longitude"))
    described = first(read, "IFD0:ImageDescription")
    dates = {}
    for kind, tag, offset in (("shot", "DateTimeOriginal", "Original"), ("scanned", "CreateDate", "Digitized")):
        zone = first(read, f"ExifIFD:OffsetTime{offset}") or ""
        dates[kind] = [each + zone for each in texts(read, f"ExifIFD:{tag}")]
    return {
        "camera": camera(read, "IFD0:Make", "IFD0:Model"),
        "description": None if described == "OLYMPUS DIGITAL CAMERA" else described,
        **at(*(sign + each if each else None for sign, each in zip(signs, degrees, strict=True))),
        **dates,
    }


def by_iptc(read: Read) -> dict[str, Any]:
    """Return the keys by exiftool's tags of IPTC."""
    place = ("Sub-location", "City", "Province-State", "Country-PrimaryLocationName")
    time = first(read, "IPTC:TimeCreated")
    return {
        "place": [each for tag in place for each in texts(read, f"IPTC:{tag}")],
        "title": first(read, "IPTC:ObjectName"),
        "headline": first(read, "IPTC:Headline"),
        "description": first(read, "IPTC:Caption-Abstract"),
        "keywords": texts(read, "IPTC:Keywords"),
        "shot": [f"{each} {time}" if time else each for each in texts(read, "IPTC:DateCreated")],
        "scanned": texts(read, "IPTC:DigitalCreationDate"),
    }


def by_the_rest(read: Read) -> list[dict[str, Any]]:
    """Return the keys by exiftool's tags of Windows, of a PNG, and of a video."""
    listed = [part.strip() for each in texts(read, "IFD0:XPKeywords") for part in each.split(";")]
    place = first(read, "Keys:GPSCoordinates", "ItemList:GPSCoordinates", "UserData:GPSCoordinates") or ""
    groups = ("Keys", "ItemList", "UserData")
    words = [part.strip() for each in texts(read, "Keys:Keywords", "ItemList:Keyword") for part in each.split(",")]
    moment = first(read, "QuickTime:CreateDate")
    dated = texts(read, "Keys:CreationDate", "ItemList:ContentCreateDate", "UserData:ContentCreateDate")
    group = next((each for each in groups[::2] if f"{each}:Model" in read), "Keys")
    return [
        {
            "rating": number_of(first(read, "IFD0:Rating")) or stars(first(read, "IFD0:RatingPercent")),
            "title": first(read, "IFD0:XPTitle"),
            "description": first(read, "IFD0:XPComment"),
            "keywords": [*dict.fromkeys(filter(None, listed))],
        },
        {
            "shot": texts(read, "PNG:CreationTime"),
            "title": first(read, "PNG:Title"),
            "description": first(read, "PNG:Description"),
        },
        {
            "camera": camera(read, f"{group}:Make", f"{group}:Model"),
            **at(*(place.split() or [None, None])[:2]),
            "title": first(read, *(f"{each}:Title" for each in groups)),
            "description": first(read, *(f"{each}:{tag}" for tag in ("Description", "Comment") for each in groups)),
            "keywords": [*dict.fromkeys(words)],
            "shot": [*dated, *([f"{moment}Z"] if moment and not moment.startswith("0000") else [])],
        },
    ]


def by_takeout(entry: Read) -> dict[str, Any]:
    """Return the keys by exiftool's reading of a file of a Takeout."""
    moment = datetime.fromtimestamp(int(entry["JSON:PhotoTakenTime"]["timestamp"]), UTC)
    place = entry.get("JSON:GeoData", {})
    return {
        "description": first(entry, "JSON:Description"),
        **at(place.get("latitude"), place.get("longitude")),
        "people": [each["name"] for each in _listed(entry.get("JSON:People"))],
        "shot": [f"{moment:%Y:%m:%d %H:%M:%S}Z"],
    }


def expected(path: Path, read: dict[str, Read]) -> dict[str, Any]:
    """Return what openvse should say by exiftool's readings of a file and of its sidecars."""
    own, said = read[path.name], list[dict[str, Any]]()
    said += [by_xmp(read[each]) for each in (f"{path.name}.xmp", f"{path.stem}.xmp") if each in read]
    said += [by_takeout(read[f"{path.name}.json"])] if f"{path.name}.json" in read else []
    noted, now = first(own, "Photoshop:IPTCDigest"), first(own, "File:CurrentIPTCDigest")
    inside = [by_xmp(own), by_iptc(own)]
    is_changed = noted is not None and (noted == STALE or now not in (None, noted))  # exiftool counts none of a PNG
    said += [by_exif(own), *(inside[::-1] if is_changed else inside), *by_the_rest(own)]
    facts = {key: next((each[key] for each in said if each.get(key) not in (None, "", [])), None) for key in KEYS[1:]}
    return {"taken": taken_of(said), **facts}


def taken_of(said: list[dict[str, Any]]) -> str | None:
    """Return the date of the strongest kind and source, as exact as any of that kind that says the same."""
    of = [[written(date) for each in said for date in each.get(kind, [])] for kind in ("shot", "scanned")]
    strongest = next(filter(None, of), [])
    taken = next(iter(strongest), None)
    for date in strongest:
        taken = date if taken and date.startswith(taken) and not date.endswith("Z") else taken
    if taken and taken.endswith("Z") and len(taken) > 19:
        return datetime.fromisoformat(taken).astimezone().isoformat()
    return taken


def written(date: str) -> str:
    """Return a date of exiftool as ISO 8601, without a fraction."""
    day, clock, second, zone = CLOCK.fullmatch(date).groups("")
    return day.replace(":", "-") + (f"T{clock}{second or ':00'}{zone}" if clock else "")


def equal(key: str, ours: Any, theirs: Any) -> bool:
    """Return whether two readings say the same: places to a metre, all else exactly."""
    if isinstance(ours, float) and isinstance(theirs, float) and key in ("latitude", "longitude"):
        return abs(ours - theirs) < 1e-5
    return bool(ours == theirs)


def sidecars_of(path: Path) -> list[Path]:
    """Return the sidecars of a file."""
    beside = (path.with_name(f"{path.name}.xmp"), path.with_suffix(".xmp"), path.with_name(f"{path.name}.json"))
    return [each for each in beside if each.exists()]


Both = dict[Path, tuple[dict[str, Any], dict[str, Any]]]


def compared(both: Both) -> list[list[object]]:
    """Return a row for each key: files that state it, files with the same here, and a case that is not."""
    rows: list[list[object]] = []
    for key in KEYS:
        stated = sum(theirs[key] is not None for _, theirs in both.values())
        other = [
            f"{path.name}: {ours.get(key)!r}, {theirs[key]!r}"
            for path, (ours, theirs) in both.items()
            if not equal(key, ours.get(key), theirs[key])
        ]
        rows.append([key, stated, len(both) - len(other), len(both), *(other or [""])[:1]])
    return rows


def searches() -> Iterator[tuple[str, list[str], Callable[[dict[str, Any]], bool]]]:
    """Yield the kind of each search, its conditions, and what fits by exiftool's reading."""
    for name in PEOPLE:
        yield "people", [f'people = "{name}"'], lambda each, own=name: own in (each["people"] or ())
    for north, east in CITIES.values():
        for size in (100, 20):
            yield (
                "place",
                [f"near = {north},{east},{size}km"],
                lambda each, own=(north, east), size=size: within(own, each, size),
            )
    for year in (1999, 2004, 2008, 2012, 2016, 2020):
        yield "date", [f"taken = {year}"], lambda each, own=str(year): (each["taken"] or "").startswith(own)
    yield "date", ["taken >= 2020-06"], lambda each: (each["taken"] or "") >= "2020-06"
    yield "date", ["taken < 2001-03-01"], lambda each: "" < (each["taken"] or "") < "2001-03-01"
    yield "camera", ["camera contains nikon"], lambda each: each["camera"] == "NIKON D850"
    yield "stars", ["rating >= 4"], lambda each: (each["rating"] or 0) >= 4
    yield "label", ["color_label = Grün"], lambda each: each["color_label"] == "Grün"


def within(own: tuple[float, float], each: dict[str, Any], km: float) -> bool:
    """Return whether a place is near another one, along a sphere."""
    if each["latitude"] is None:
        return False
    (north, east), (other_north, other_east) = (
        map(math.radians, pair) for pair in (own, (each["latitude"], each["longitude"]))
    )
    half = (other_north - north) / 2, (other_east - east) / 2
    part = math.sin(half[0]) ** 2 + math.cos(north) * math.cos(other_north) * math.sin(half[1]) ** 2
    return 2 * 6371.0088 * math.asin(math.sqrt(part)) <= km


def tried(folder: Path, both: Both) -> list[list[object]]:
    """Return a row for each search of pictures: kind, conditions, what fits, what was found, and whether that is right.

    The index has no videos, and no raw files, as those of exiftool have no pixels of a camera.
    """
    out = folder.parent / f"{folder.name}.index"
    build_index(OnnxModel(write_export(folder.parent / "model")), folder, out)
    index, rows = Index.open(out), []
    for kind, where, fits in searches():
        allowed = allowed_items(index, [parse_condition(each) for each in where])
        found = {name for name, holds in zip(index.table.ids, allowed, strict=True) if holds}
        own = {path.name for path, (_, theirs) in both.items() if path.name in index.table.ids and fits(theirs)}
        rows.append([kind, " and ".join(where), len(own), len(found), found == own])
    return rows


def main() -> None:
    """Write the files, and print both tables."""
    folder = Path(sys.argv[1])
    paths = write(folder)
    read = told(paths)
    both = {path: (read_facts(path, sidecars_of(path)).header, expected(path, read)) for path in paths}
    print(Table(["key", "stated", "same", "of", "a case that is not"], compared(both)).to_text())
    print(Table(["kind", "conditions", "fit", "found", "right"], tried(folder, both)).to_text())


if __name__ == "__main__":
    main()
