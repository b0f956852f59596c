"""A trial of photo search: 300 photographs of known words, dates, places and cameras; ten queries of each kind.

python studies/photo_trial.py MODEL flickr8k:FOLDER PHOTOS

The images of the test split become the photographs of six journeys in PHOTOS, with EXIF, GPS, and IPTC or XMP; the
index is PHOTOS.index. A query for a file, a person or a title is right if what it names comes before all else, one for
a date, a place or a camera if it finds all that fit and nothing else. One for similarity is a caption of one of the
images, and is right if that is among the first ten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import openvse
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.indexing import Index, build_index
from openvse.media.images import read_image
from openvse.output.table import Table
from openvse.search import Page, SearchEngine

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.photographs import exif_of, jpeg, xmp_of

COUNT = 300
EACH = COUNT // 6  # of a journey


@dataclass(frozen=True)
class Journey:
    """Fifty photographs of one camera, one in three hours."""

    folder: str
    begins: datetime
    offset: str
    place: tuple[float, float]
    maker: str
    model: str
    name: str  # of a file


JOURNEYS = (
    Journey("berlin", datetime(2024, 6, 1, 8), "+02:00", (52.52, 13.405), "Canon", "Canon EOS 80D", "IMG_{}"),
    Journey("tokyo", datetime(2023, 12, 21, 9), "+09:00", (35.676, 139.65), "SONY", "ILCE-7M3", "DSC0{}"),
    Journey("lima", datetime(2022, 1, 3, 7), "-05:00", (-12.046, -77.043), "Apple", "iPhone 13", "IMG_{}"),
    Journey("suva", datetime(2019, 9, 9, 6), "+12:00", (-18.124, 178.45), "Google", "Pixel 3", "PXL_{}"),
    Journey("oslo", datetime(2016, 2, 27, 9), "+01:00", (59.913, 10.752), "NIKON CORPORATION", "NIKON D850", "_D8{}"),
    Journey("scans", datetime(1999, 12, 29, 12), "", (48.137, 11.575), "EPSON", "Perfection V600", "scan-{}"),
)
PEOPLE = (
    "Grandma", "Jürgen Groß", "Zoë", "Anne-Marie", "O'Neill", "Ana María", "Siân", "山田太郎", "Łukasz", "Ivan",
)  # fmt: skip
TYPED = {"Jürgen Groß": "jurgen gross", "Zoë": "zoe", "Ana María": "ana maria", "山田太郎": "山田", "Łukasz": "lukasz"}
TITLES = (
    "First day at school", "Café de l'Horloge", "Grandpa's boat", "Wedding of Anna and Tom", "Moving house",
    "The old lighthouse", "Carnival", "Straße im Schnee", "Birthday cake", "Departure from platform 9",
)  # fmt: skip


@dataclass(frozen=True)
class Photograph:
    """What is known of a photograph."""

    id: str
    source: str
    journey: Journey
    taken: datetime
    place: tuple[float, float]
    person: str = ""
    title: str = ""


def planned(corpus: Corpus) -> list[Photograph]:
    """Return the photographs: each person is on six of them, each title on one."""
    photographs = []
    for number, source in enumerate(corpus.image_ids[:COUNT]):
        journey, place = JOURNEYS[number // EACH], number % EACH
        photographs.append(
            Photograph(
                f"{journey.folder}/{journey.name.format(2000 + 7 * number)}.jpg",
                source,
                journey,
                journey.begins + timedelta(hours=3 * place),
                (journey.place[0] + place / 100, journey.place[1]),  # a kilometre further north each time
                PEOPLE[number // 5 % 10] if number % 5 == 0 else "",
                TITLES[number // 30] if number % 30 == 7 else "",
            )
        )
    return photographs


def write(photograph: Photograph, corpus: Corpus, folder: Path) -> None:
    """Write a photograph with its headers; those of Sony, Google and Nikon in IPTC, the others in XMP."""
    journey = photograph.journey
    image = read_image(corpus.image_paths[corpus.image_ids.index(photograph.source)])
    exif = exif_of(
        f"{photograph.taken:%Y:%m:%d %H:%M:%S}", journey.offset, journey.maker, journey.model, photograph.place
    )
    people = [photograph.person] if photograph.person else []
    path = folder / photograph.id
    path.parent.mkdir(parents=True, exist_ok=True)
    if journey.folder in ("tokyo", "suva", "oslo"):
        said = {5: [photograph.title.encode()], 25: [name.encode() for name in people]}
        path.write_bytes(jpeg(image, exif, iptc=said))
    else:
        path.write_bytes(jpeg(image, exif, xmp_of(photograph.title, *people)))


def conditions() -> Iterator[tuple[str, list[str], Callable[[Photograph], bool]]]:
    """Yield the kind of each query for a date, a place or a camera, its conditions, and what fits them."""

    def date(test: str, fits: Callable[[str], bool]) -> tuple[str, list[str], Callable[[Photograph], bool]]:
        return "date", test.split(" and "), lambda each: fits(each.taken.isoformat())

    yield date("taken >= 2024-06", lambda taken: taken >= "2024-06")
    yield date("date = 2023-12-24", lambda taken: taken.startswith("2023-12-24"))
    yield date("taken = 2016", lambda taken: taken.startswith("2016"))
    yield date("taken = 2016-02-29", lambda taken: taken.startswith("2016-02-29"))
    yield date("date < 2000", lambda taken: taken < "2000")
    yield date("taken >= 2019 and taken < 2023", lambda taken: "2019" <= taken < "2023")
    yield date("taken > 2024-06-03T12:00", lambda taken: taken > "2024-06-03T12:59")
    yield date("taken = 1999-12-31", lambda taken: taken.startswith("1999-12-31"))
    yield date("taken != 2022", lambda taken: not taken.startswith("2022"))
    yield date("date >= 2025", lambda taken: taken >= "2025")
    for journey in JOURNEYS[:5]:
        north, east = journey.place
        near = f"near = {north},{east},5500m"
        yield ("place", [near], lambda each, own=journey: each.journey is own and each.place[0] < own.place[0] + 0.0495)
    yield "place", ["near = 52.5,13.4,100km"], lambda each: each.journey.folder == "berlin"
    yield "place", ["near = -18,-179,400km"], lambda each: each.journey.folder == "suva"  # across 180 degrees
    yield "place", ["latitude < 0"], lambda each: each.place[0] < 0
    yield "place", ["longitude > 100"], lambda each: each.place[1] > 100
    yield "place", ["near = 0,0,20000m"], lambda each: False
    for journey in JOURNEYS:
        yield "camera", [f"camera contains {journey.model}"], lambda each, own=journey: each.journey is own
    yield "camera", ["camera contains canon"], lambda each: each.journey.maker == "Canon"
    yield "camera", ["camera = NIKON D850"], lambda each: each.journey.model == "NIKON D850"
    yield "camera", ["camera ~ *iPhone*"], lambda each: each.journey.model == "iPhone 13"
    yield "camera", ["camera = Leica"], lambda each: False


def tried(engine: SearchEngine, corpus: Corpus, photographs: list[Photograph]) -> list[list[object]]:
    """Return a row for each query: kind, query, what should be found, and what was."""

    def ids(text: str, *where: str) -> list[str]:
        return [hit.id for hit in engine.answer(text, Page(COUNT, where=where))[0].hits]

    rows: list[list[object]] = []

    def first(kind: str, text: str, own: set[str]) -> None:
        found = len(own & set(ids(text)[: len(own)]))
        rows.append([kind, text, len(own), found, found == len(own)])

    for each in photographs[3::30]:
        first("file name", Path(each.id).stem, {each.id})
    for name in PEOPLE:
        first("person", TYPED.get(name, name.lower()), {each.id for each in photographs if each.person == name})
    for each in filter(lambda each: each.title, photographs):
        first("title", each.title.upper(), {each.id})
    texts = dict(zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True))
    for number in range(1, COUNT, 30):
        text = corpus.captions[texts[number]]
        rank = ids(text).index(photographs[number].id) + 1
        rows.append(["similarity", text, 1, f"rank {rank}", rank <= 10])
    for kind, where, fits in conditions():
        own, found = {each.id for each in photographs if fits(each)}, set(ids("a dog", *where))
        rows.append([kind, " and ".join(where), len(own), len(found), found == own])
    return rows


def main() -> None:
    """Make the photographs and their index, ask, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("photos", type=Path)
    options = parser.parse_args()
    corpus = open_corpus(options.data).split("test")
    photographs = planned(corpus)
    for each in photographs:
        write(each, corpus, options.photos)
    model, index = openvse.load(options.model), options.photos.with_suffix(".index")
    build_index(model, options.photos, index)
    with SearchEngine(model, Index.open(index)) as engine:
        rows = tried(engine, corpus, photographs)
    print(Table(["kind", "query", "should be found", "found", "right"], rows).to_markdown())
    for kind in dict.fromkeys(row[0] for row in rows):
        right = [bool(row[-1]) for row in rows if row[0] == kind]
        print(f"{kind}: {sum(right)} of {len(right)}")


if __name__ == "__main__":
    main()
