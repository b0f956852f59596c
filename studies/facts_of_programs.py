"""What other programs wrote: agreement with exiftool over 200 photographs, and searches by people, place and date.

python studies/facts_of_programs.py PHOTOS

exiftool (Debian: libimage-exiftool-perl) writes the photographs: EXIF, IPTC and XMP, some of which contradict each
other, and every third one has its XMP in a sidecar. It then reads them by the rules of the Metadata Working Group, and
each key is compared. The searches are conditions on an index of PHOTOS, beside it; each is right if it finds all that
fit and nothing else.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
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

COUNT = 200
PEOPLE = ("Grandma", "Jürgen Groß", "Zoë", "O'Neill", "Ana María", "山田太郎", "Łukasz", "Ivan", "Siân", "Bo")
CITIES = {
    "Berlin": (52.52, 13.405),
    "Tokyo": (35.676, 139.65),
    "Lima": (-12.046, -77.043),
    "Suva": (-18.124, 178.45),
    "Oslo": (59.913, 10.752),
}
KEYS = ("taken", "description", "keywords", "rating", "color_label", "people", "tags", "title", "latitude", "longitude")
XMP_OF = {"title": "XMP-dc:Title", "rating": "XMP-xmp:Rating", "label": "XMP-xmp:Label"}


def planned(number: int) -> dict[str, Any]:
    """Return what is true of a photograph; the same for each run."""
    drawn = random.Random(number)
    city = list(CITIES)[number % len(CITIES)]
    north, east = CITIES[city]
    return {
        "name": f"{number:03d}.jpg",
        "taken": datetime(2016, 1, 1, 8) + timedelta(days=17 * number, minutes=7 * number),
        "offset": drawn.choice(["+02:00", "-05:00", ""]),
        "place": (round(north + number / 5000, 6), round(east, 6)),
        "city": city,
        "people": sorted(drawn.sample(PEOPLE, drawn.choice([0, 1, 1, 2]))),
        "rating": drawn.choice([None, 0, 1, 3, 4, 5, -1]),
        "label": drawn.choice(["", "Red", "Grün"]),
        "title": f"Photograph {number}",
        "has_sidecar": number % 3 == 0,
        "draw": drawn,
    }


def tags_of(photo: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the arguments of exiftool for the file itself, and those for its XMP."""
    drawn, stamp = photo["draw"], f"{photo['taken']:%Y:%m:%d %H:%M:%S}"
    north, east = photo["place"]
    own, xmp = [], []
    where = drawn.choice(["exif", "xmp", "both"])
    if where != "xmp":
        own += [f"-EXIF:DateTimeOriginal={stamp}", f"-EXIF:OffsetTimeOriginal={photo['offset']}"]
    if where != "exif":
        xmp += [f"-XMP-photoshop:DateCreated={stamp}{photo['offset']}"]
    elif drawn.random() < 0.3:
        own += ["-IPTC:DateCreated=1999:01:01", "-IPTC:TimeCreated=10:00:00+00:00"]  # which EXIF comes before
    if drawn.random() < 0.5:
        own += [f"-GPS:GPSLatitude={abs(north)}", f"-GPS:GPSLatitudeRef={'NS'[north < 0]}"]
        own += [f"-GPS:GPSLongitude={abs(east)}", f"-GPS:GPSLongitudeRef={'EW'[east < 0]}"]
    else:
        xmp += [f"-XMP-exif:GPSLatitude={north}", f"-XMP-exif:GPSLongitude={east}"]
    regions = ",".join(f"{{Name={name},Type=Face}}" for name in photo["people"])
    if regions and drawn.random() < 0.6:
        xmp += [f"-XMP-mwg-rs:RegionInfo={{RegionList=[{regions}]}}"]
    else:
        xmp += [f"-XMP-iptcExt:PersonInImage={name}" for name in photo["people"]]
    xmp += [f"-{tag}={photo[key]}" for key, tag in XMP_OF.items() if photo[key] not in (None, "")]
    xmp += [f"-XMP-lr:HierarchicalSubject=places|{photo['city']}"]
    if drawn.random() < 0.5:
        own += ["-IPTC:Keywords=of iptc", "-IPTC:Keywords=Straße", "-IPTC:Caption-Abstract=Grüße of iptc"]
        own += ["-IPTC:CodedCharacterSet=UTF8"]
    if drawn.random() < 0.5:
        xmp += ["-XMP-dc:Subject=of xmp", "-XMP-dc:Subject=雪", "-XMP-dc:Description=of xmp"]
    if drawn.random() < 0.2:
        own += ["-EXIF:ImageDescription=of exif"]
    if drawn.random() < 0.3:
        own += ["-Photoshop:IPTCDigest=" + drawn.choice(["new", "00000000000000000000000000000000"])]
    return own, xmp


def write(folder: Path) -> list[dict[str, Any]]:
    """Write the photographs and sidecars in one run of exiftool."""
    folder.mkdir(parents=True, exist_ok=True)
    photos = [planned(number) for number in range(COUNT)]
    lines: list[str] = []
    for photo in photos:
        path = folder / photo["name"]
        Image.new("RGB", (64, 48), (200, 20, 20)).save(path, "JPEG")
        own, xmp = tags_of(photo)
        common = ["-charset", "iptc=UTF8", "-charset", "exif=UTF8", "-n", "-m", "-q", "-overwrite_original"]
        beside = folder / f"{photo['name']}.xmp"
        beside.unlink(missing_ok=True)
        lines += [*common, *own, *([] if photo["has_sidecar"] else xmp), str(path), "-execute"]
        if photo["has_sidecar"]:
            lines += [*common, *xmp, str(beside), "-execute"]
    subprocess.run(["exiftool", "-@", "-"], input="\n".join(lines), text=True, check=True, capture_output=True)
    return photos


def told(folder: Path, pattern: str) -> dict[str, dict[str, Any]]:
    """Return what exiftool reads of files, by their names."""
    wanted = ["MWG:DateTimeOriginal", "MWG:Description", "MWG:Keywords", "XMP-xmp:Rating", "XMP-xmp:Label"]
    wanted += ["XMP-mwg-rs:RegionName", "XMP-iptcExt:PersonInImage", "XMP-lr:HierarchicalSubject", "XMP-dc:Title"]
    wanted += ["EXIF:OffsetTimeOriginal", "Composite:GPSLatitude", "Composite:GPSLongitude"]
    wanted += ["XMP-exif:GPSLatitude", "XMP-exif:GPSLongitude", "GPS:GPSLatitude"]
    words = ["exiftool", "-json", "-G1", "-n", "-charset", "exif=UTF8", *(f"-{each}" for each in wanted)]
    done = subprocess.run([*words, "-ext", pattern, str(folder)], capture_output=True, text=True, check=False)
    return {Path(each["SourceFile"]).name: each for each in json.loads(done.stdout or "[]")}


def expected(own: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    """Return what openvse should say by exiftool's readings of a file and of its sidecar, which wins."""
    said = [_of(beside), _of(own)]
    return {key: next((each[key] for each in said if each.get(key) not in (None, "", [])), None) for key in KEYS}


def _of(read: dict[str, Any]) -> dict[str, Any]:
    def listed(*names: str) -> list[str]:
        values = [read.get(name, []) for name in names]
        flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
        return [*dict.fromkeys(map(str, flat))]

    at = "Composite" if "Composite:GPSLatitude" in read else "XMP-exif"
    taken = str(read.get("Composite:DateTimeOriginal", read.get("MWG:DateTimeOriginal", "")))[:19]
    return {
        "taken": taken.replace(":", "-", 2).replace(" ", "T"),
        "description": read.get("Composite:Description", read.get("MWG:Description")),
        "keywords": listed("Composite:Keywords", "MWG:Keywords"),
        "rating": read.get("XMP-xmp:Rating"),
        "color_label": read.get("XMP-xmp:Label"),
        "people": listed("XMP-mwg-rs:RegionName", "XMP-iptcExt:PersonInImage"),
        "tags": listed("XMP-lr:HierarchicalSubject"),
        "title": read.get("XMP-dc:Title"),
        "latitude": read.get(f"{at}:GPSLatitude"),
        "longitude": read.get(f"{at}:GPSLongitude"),
    }


def equal(key: str, ours: Any, theirs: Any) -> bool:
    """Return whether two readings say the same: places to a metre, times to the second."""
    if ours is None or theirs is None:
        return ours is theirs
    if key in ("latitude", "longitude"):
        return abs(float(ours) - float(theirs)) < 1e-5
    return str(ours)[:19] == theirs if key == "taken" else ours == theirs


def compared(folder: Path, photos: list[dict[str, Any]]) -> list[list[object]]:
    """Return a row for each key: values that exiftool reads, how many are the same here, and a case that is not."""
    files, sidecars = told(folder, "jpg"), told(folder, "xmp")
    same, stated, cases = Counter[str](), Counter[str](), dict[str, str]()
    for photo in photos:
        path, beside = folder / photo["name"], folder / f"{photo['name']}.xmp"
        ours = read_facts(path, [beside] if beside.exists() else []).header
        theirs = expected(files.get(path.name, {}), sidecars.get(beside.name, {}))
        for key in KEYS:
            stated[key] += theirs[key] is not None
            same[key] += equal(key, ours.get(key), theirs[key])
            if not equal(key, ours.get(key), theirs[key]):
                cases.setdefault(key, f"{path.name}: {ours.get(key)!r}, {theirs[key]!r}")
    return [[key, stated[key], same[key], COUNT, cases.get(key, "")] for key in KEYS]


def searches() -> Iterator[tuple[str, list[str], Callable[[dict[str, Any]], bool]]]:
    """Yield the kind of each search, its conditions, and what fits."""
    for name in PEOPLE:
        yield "people", [f'people = "{name}"'], lambda each, own=name: own in each["people"]
    for city, (north, east) in CITIES.items():
        yield "place", [f"near = {north},{east},100km"], lambda each, own=city: each["city"] == own
        yield (
            "place",
            [f"near = {north},{east},1km"],
            lambda each, own=city: each["city"] == own and each["place"][0] - CITIES[own][0] < 0.009,
        )
    for year in range(2016, 2022):
        yield "date", [f"taken = {year}"], lambda each, own=year: each["taken"].year == own
    yield "date", ["taken >= 2020-06"], lambda each: each["taken"] >= datetime(2020, 6, 1)
    yield "date", ["taken < 2016-03-01"], lambda each: each["taken"] < datetime(2016, 3, 1)
    yield "date", ["taken = 2016-01-18"], lambda each: each["taken"].date() == datetime(2016, 1, 18).date()
    yield (
        "date",
        ["taken >= 2018", "people = Zoe"],
        lambda each: each["taken"].year >= 2018 and "Zoë" in each["people"],
    )


def tried(folder: Path, photos: list[dict[str, Any]]) -> list[list[object]]:
    """Return a row for each search: its kind, conditions, what fits, what was found, and whether that is right."""
    out = folder.parent / f"{folder.name}.index"
    build_index(OnnxModel(write_export(folder.parent / "model")), folder, out)
    index, rows = Index.open(out), []
    for kind, where, fits in searches():
        allowed = allowed_items(index, [parse_condition(each) for each in where])
        found = {name for name, holds in zip(index.table.ids, allowed, strict=True) if holds}
        own = {photo["name"] for photo in photos if fits(photo)}
        rows.append([kind, " and ".join(where), len(own), len(found), found == own])
    return rows


def main() -> None:
    """Write the photographs, and print both tables."""
    folder = Path(sys.argv[1])
    photos = write(folder)
    print(Table(["key", "stated", "same", "of", "a case that is not"], compared(folder, photos)).to_text())
    print(Table(["kind", "conditions", "fit", "found", "right"], tried(folder, photos)).to_text())


if __name__ == "__main__":
    main()
