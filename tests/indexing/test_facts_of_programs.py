"""What sidecars and a Takeout say in an index: conditions, updates without embedding, and reports."""

import json
import os
from pathlib import Path

import pytest

from colour_model import ColourModel
from openvse.indexing.build import IndexReport, build_index
from openvse.indexing.conditions import allowed_items, parse_condition
from openvse.indexing.index import Index
from openvse.search import Page, SearchEngine
from photographs import bag, exif_of, jpeg, xmp_packet

GRANDMA = xmp_packet('xmp:Rating="4"', bag("Iptc4xmpExt:PersonInImage", "Grandma"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(jpeg("red"))
    (folder / "a.jpg.xmp").write_bytes(GRANDMA)
    (folder / "trip" / "b.jpg").write_bytes(jpeg("blue", exif_of("2019:05:05 10:00:00")))
    told = {"title": "b.jpg", "geoData": {"latitude": 52.5, "longitude": 13.4}, "people": [{"name": "Zoe"}]}
    (folder / "trip" / "b.jpg.supplemental-metadata.json").write_text(json.dumps(told))
    (folder / "c.png").write_bytes(jpeg("white"))
    return folder


def found(out: Path, *conditions: str) -> set[str]:
    index = Index.open(out)
    allowed = allowed_items(index, [parse_condition(each) for each in conditions])
    return {name for name, fits in zip(index.table.ids, allowed, strict=True) if fits}


def update(photos: Path, model: ColourModel | None = None, **options: bool) -> tuple[IndexReport, list[str]]:
    """Update the index, and return the report and what was embedded."""
    model = model or ColourModel()
    return build_index(model, photos, photos.parent / "index", **options), sorted(model.encoded)


def test_people_ratings_and_places_without_a_metadata_file(photos: Path) -> None:
    report, _ = update(photos)
    out = photos.parent / "index"
    assert (report.metadata_problems, report.left_out.files) == ([], {})
    assert found(out, "people = Grandma") == found(out, "rating >= 4") == {"a.jpg"}
    assert found(out, "near = 52.5,13.4,1km") == found(out, "people = zoe") == {"trip/b.jpg"}
    (photos / "c.xmp").write_bytes(GRANDMA.replace(b"Grandma", b"Red Baron"))
    update(photos)
    with SearchEngine(ColourModel(), Index.open(out)) as engine:
        (answer,) = engine.answer("red", Page(only="words"))
    assert [hit.id for hit in answer.hits] == ["c.png"]


def test_a_changed_sidecar_is_read_again_and_nothing_is_embedded(photos: Path) -> None:
    out, sidecar = photos.parent / "index", photos / "a.jpg.xmp"
    update(photos)
    assert update(photos)[0].reused == 3
    sidecar.write_bytes(GRANDMA.replace(b"Grandma", b"Grandpa"))  # of the same size
    report, embedded = update(photos)
    assert (report.reused, report.recognised, embedded) == (2, 1, [])
    assert (found(out, "people = Grandpa"), found(out, "people = Grandma")) == ({"a.jpg"}, set())
    sidecar.unlink()
    report, embedded = update(photos)
    assert (report.recognised, embedded, found(out, "rating >= 0")) == (1, [], set())
    (photos / "c.xmp").write_bytes(GRANDMA)
    assert update(photos)[1] == []
    assert found(out, "people = Grandma") == {"c.png"}
    assert update(photos)[0].reused == 3


def test_what_the_user_says_comes_before_sidecars(photos: Path) -> None:
    out = photos.parent / "index"
    (photos / "metadata.jsonl").write_text('{"file_name": "a.jpg", "rating": 1}\n')
    update(photos)
    assert (found(out, "rating = 1"), found(out, "people = Grandma")) == ({"a.jpg"}, {"a.jpg"})
    (photos / "a.jpg.xmp").write_bytes(GRANDMA.replace(b"Grandma", b"Zoe"))
    update(photos)
    assert (found(out, "rating = 1"), found(out, "people = Zoe")) == ({"a.jpg"}, {"a.jpg", "trip/b.jpg"})
    (photos / "metadata.jsonl").unlink()
    update(photos)
    assert found(out, "rating = 4") == {"a.jpg"}


def test_bad_sidecars_and_those_that_differ_are_lines_of_the_report(photos: Path) -> None:
    (photos / "a.jpg").write_bytes(jpeg("red", None, xmp_packet('xmp:Rating="2"')))
    (photos / "c.png.xmp").write_bytes(b"no XML")
    os.mkfifo(photos / "trip" / "b.jpg.xmp")
    alone = "gone.jpg.xmp", "trip/away.jpg.json"
    for name in (*alone, "drawing.svg.xmp", "drawing.svg", "package.json"):
        (photos / name).write_bytes(GRANDMA)
    (photos / alone[1]).write_text(json.dumps({"title": "away.jpg", "photoTakenTime": {"timestamp": "1"}}))
    report, _ = update(photos)
    assert report.count == 3 and report.failed == []
    bad, pipe, unused, differing = sorted(
        report.metadata_problems, key=lambda line: ("rating" in line, alone[0] in line)
    )
    assert "c.png.xmp" in bad + pipe and "b.jpg.xmp" in bad + pipe
    assert "rating (1)" in differing and unused.startswith("2 ")
    assert update(photos)[0].metadata_problems == []
    assert found(photos.parent / "index", "rating = 4") == {"a.jpg"}


def test_sidecars_may_be_ignored(photos: Path) -> None:
    (photos / ".openvseignore").write_text("*.xmp\n")
    update(photos)
    assert found(photos.parent / "index", "people = Zoe") == {"trip/b.jpg"}
    assert found(photos.parent / "index", "people = Grandma") == set()
