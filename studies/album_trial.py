"""A trial of words and facts: 300 photographs as several programs left them, and ten queries that a person would type.

python studies/album_trial.py MODEL flickr8k:FOLDER PHOTOS [--openvse COMMAND] [--index INDEX]

The images of the test split become a trip to Norway (GPS), a part of a Takeout, photographs of Picasa and Windows, a
folder named after a month, files with XMP, and files of which nothing is known. A letter of three pages is a scan.
COMMAND makes INDEX (PHOTOS.index) and searches there, so that another version can be tried on the same files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from openvse.datasets import open_corpus
from openvse.media.images import read_image
from openvse.output.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.photographs import exif_of, jpeg, xmp_of, xmp_packet

TOWNS = {"a": (60.393, 5.324), "b": (69.649, 18.956), "c": (59.913, 10.752)}  # Bergen, Tromsø, Oslo
PAGES = (
    "Dear customer,\nthank you for your order of\nthe tenth of March.",
    "The seeds need light for photosyn-\nthesis, so keep them near a window.",
    "Please pay invoice 4711 within\nthirty days.",
)


def written(images: Iterator[Image.Image], folder: Path) -> None:
    """Write the folder: photographs by where they come from, and the scan."""

    def save(name: str, exif: Image.Exif | None = None, xmp: bytes = b"") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(next(images), exif, xmp))
        return path

    for town, place in TOWNS.items():
        for number in range(20):
            taken = f"2023:07:{5 + number // 5:02} {8 + number % 12:02}:00:00"
            save(f"trip/IMG_{town}{number:02}.jpg", exif_of(taken, "+02:00", "Canon", "Canon EOS 80D", place))
    album = folder / "Takeout" / "Google Photos" / "Summer at the lake"
    for number in range(30):
        path = save(f"{album.relative_to(folder)}/PXL_{number:03}.jpg")
        text = {"title": path.name, "photoTakenTime": {"timestamp": str(1027000000 + 90000 * number)}}
        path.with_name(f"{path.name}.supplemental-metadata.json").write_text(json.dumps(text))
    (album / "metadata.json").write_text(json.dumps({"title": "Summer at the lake", "access": "protected"}))
    for number in range(20):
        save(f"1985-07 Italy/slide{number:02}.jpg")
    for number in range(20):
        save(f"picasa/P{number:03}.jpg")
    faces = "".join(f"[P{number:03}.jpg]\nfaces=rect64(3f845bcb59418507),aa1\n" for number in (3, 8, 11))
    starred = "".join(f"[P{number:03}.jpg]\nstar=yes\n" for number in (1, 2, 4, 5))
    (folder / "picasa" / ".picasa.ini").write_text(f"[Contacts2]\naa1=Aunt Ingrid;;\n{faces}{starred}")
    for number in range(20):
        stars = (0, 1, 25, 50, 75, 99)[number % 6]
        save(f"windows/DSC{number:03}.jpg", None, xmp_packet(f'MicrosoftPhoto:Rating="{stars}"'))
    for name, title in (("IMG_9001", "Birthday cake"), ("IMG_9002", "Das Haus am See"), ("IMG_9003", "Sunflower")):
        save(f"edited/{name}.jpg", None, xmp_of(title))
    path = save("edited/IMG_9004.jpg")
    path.with_suffix(".xmp").write_bytes(xmp_packet('photoshop:Headline="The keeper of the lighthouse"'))
    number = 0
    while (image := next(images, None)) is not None:
        (folder / "others").mkdir(exist_ok=True)
        (folder / "others" / f"photo{number:03}.jpg").write_bytes(jpeg(image))
        number += 1
    font, pages = ImageFont.load_default(34), []
    for text in PAGES:
        page = Image.new("RGB", (900, 1200), "white")
        ImageDraw.Draw(page).multiline_text((80, 150), text, "black", font, spacing=20)
        pages.append(page)
    (folder / "scans").mkdir()
    pages[0].save(folder / "scans" / "letter.tif", save_all=True, append_images=pages[1:], compression="tiff_lzw")


def queries() -> Iterator[tuple[str, tuple[str, ...], str, int]]:
    """Yield a sentence, conditions, and which files are right: by a pattern of their names, and their number."""
    yield "bergen", (), "trip/IMG_a*", 20
    yield "norway", (), "trip/*", 60
    yield "birthday cakes", (), "edited/IMG_9001.jpg", 1
    yield "häuser am see", (), "edited/IMG_9002.jpg", 1
    yield "sunfl*", (), "edited/IMG_9003.jpg", 1
    yield "lighthouse keepers", (), "edited/IMG_9004.jpg", 1
    yield "invoice 4711", (), "scans/letter.tif", 1
    yield "photosynthesis", (), "scans/letter.tif", 1
    yield "summer at the lake", (), "Takeout/*/*/*", 30
    yield "aunt ingrid", (), "picasa/*", 3
    yield "people", ("taken = 1985-07",), "1985-07 Italy/*", 20
    yield "people", ("rating >= 4",), "[wp]i*/*", 10  # six of Windows, and four stars of Picasa


def main() -> None:
    """Make the photographs and their index, ask, and print where the hits stand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--openvse", default="openvse", metavar="COMMAND")
    parser.add_argument("--index", type=Path)
    options = parser.parse_args()
    corpus = open_corpus(options.data).split("test")
    if not options.photos.exists():
        written(map(read_image, corpus.image_paths[:299]), options.photos)
    command, index = options.openvse.split(), options.index or options.photos.with_suffix(".index")
    subprocess.run([*command, "index", options.model, options.photos, "--out", index, "--read-text"], check=True)
    rows = []
    for text, where, pattern, count in queries():
        conditions = [word for each in where for word in ("--where", each)]
        asked = [*command, "search", index, text, *conditions, "--json", "--top-k", "300"]
        found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        hits = [hit["id"] for hit in json.loads(found)["result"]["queries"][0]["hits"]]
        right = [number for number, hit in enumerate(hits, 1) if Path(hit).match(pattern)]
        first = sum(number <= count for number in right)
        rows.append([" ".join([text, *where]), count, min(right, default=None), first, len(hits) if where else ""])
    print(Table(["query", "right", "the first at", "of them in the first", "found"], rows).to_markdown())


if __name__ == "__main__":
    main()
