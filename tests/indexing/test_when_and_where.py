"""Dates, places and words of files in an index, and the conditions on them."""

import json
import math
import os
import random
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from colour_model import ColourModel, Pixels, paint
from openvse.errors import DataError
from openvse.indexing.build import build_index
from openvse.indexing.conditions import allowed_items, parse_condition
from openvse.indexing.database import Database, Entry, taken_at
from openvse.indexing.index import Index
from openvse.indexing.manifest import IndexSettings, Item
from openvse.indexing.scanning import iso_date
from openvse.indexing.writer import IndexWriter, Root
from openvse.media.ranks import FactSource, Said
from openvse.media.videos import ClipSource, read_poster
from photographs import exif_of, jpeg, write_video, xmp_of
from tests.failures import Failures

BERLIN, TOKYO = (52.52, 13.405), (35.6762, 139.6503)
FILE_DATE = datetime(2026, 3, 3, 12)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Two photographs with their headers, and an image without one; all files are of 2026."""
    folder = tmp_path / "album"
    folder.mkdir()
    (folder / "berlin.jpg").write_bytes(
        jpeg("red", exif_of("2024:06:01 12:30:00", "+02:00", "Canon", "Canon EOS 80D", BERLIN), xmp_of("Oma", "snow"))
    )
    (folder / "tokyo.jpg").write_bytes(jpeg("blue", exif_of("2023:12:31 23:59:59", "+09:00", "SONY", "A7", TOKYO)))
    paint(folder / "drawn.png", "white")
    for path in folder.iterdir():
        os.utime(path, (FILE_DATE.timestamp(),) * 2)
    return folder


class Posters(ColourModel):
    """Sees the middle frame of a segment."""

    def read_image(self, image: ClipSource) -> Pixels:
        return super().read_image(read_poster(image))


def said(out: Path) -> dict[str, dict[str, object]]:
    with Database(out / Index.open(out).manifest.items) as database:
        rows = database.read("SELECT id, metadata FROM items WHERE metadata IS NOT NULL")
    return {str(name): json.loads(str(text)) for name, text in rows}


def found(out: Path, *conditions: str) -> set[str]:
    index = Index.open(out)
    allowed = allowed_items(index, [parse_condition(each) for each in conditions])
    return {name for name, fits in zip(index.table.ids, allowed, strict=True) if fits}


def test_when_and_where_a_photograph_was_taken(model: ColourModel, album: Path, tmp_path: Path):
    out = tmp_path / "index"
    build_index(model, album, out)
    assert said(out) == {
        "berlin.jpg": {
            "taken": "2024-06-01T12:30:00+02:00", "camera": "Canon EOS 80D", "latitude": 52.52, "longitude": 13.405,
            "title": "Oma", "keywords": ["snow"],
        },
        "tokyo.jpg": {
            "taken": "2023-12-31T23:59:59+09:00", "camera": "SONY A7", "latitude": 35.6762, "longitude": 139.6503
        },
    }  # fmt: skip
    assert found(out, "taken >= 2024-06") == {"berlin.jpg"}
    assert found(out, "taken = 2024-06-01T12:30:00+02:00") == {"berlin.jpg"}  # as it is told
    assert found(out, "taken < 2024") == found(out, "taken = 2023-12-31") == {"tokyo.jpg"}
    assert found(out, "date = 2026") == {"drawn.png"}
    assert found(out, "date < 2025") == {"berlin.jpg", "tokyo.jpg"}
    assert found(out, "near = 52.5,13.4,20km", "keywords = snow") == {"berlin.jpg"}
    assert found(out, "near = 52.5,13.4,500m") == set()
    assert found(out, "near != 52.5,13.4,20km") == {"tokyo.jpg", "drawn.png"}
    shutil.copy(album / "berlin.jpg", album / "copy.jpg")  # of today, and recognised by its content
    assert build_index(model, album, out).recognised == 1
    assert said(out)["copy.jpg"] == said(out)["berlin.jpg"]


def test_what_the_user_says_comes_first(model: ColourModel, album: Path, tmp_path: Path):
    out, lines = tmp_path / "index", [{"file_name": "berlin.jpg", "camera": "Grandpa's", "taken": "1985-07"}]
    lines.append({"file_name": "drawn.png", "taken": 1990, "latitude": "north", "near": "here"})
    lines.append({"file_name": "tokyo.jpg", "path": "film/1.jpg", "size": 3, "date": "1.5.2021"})
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = build_index(model, album, out)
    assert report.described == 0  # all are new
    (problem,) = report.metadata_problems
    assert all(f"meta.{key}" in problem for key in ("path", "near", "size")) and "meta.date" not in problem
    assert found(out, "date = 2021-05") == {"tokyo.jpg"} == found(out, "taken = 2023", "meta.size < 4")
    assert said(out)["tokyo.jpg"]["date"] == "2021-05-01"
    assert said(out)["berlin.jpg"]["camera"] == "Grandpa's" and said(out)["berlin.jpg"]["latitude"] == 52.52
    assert found(out, "taken = 1985-07") == {"berlin.jpg"} and found(out, "date < 1991") == {"berlin.jpg", "drawn.png"}
    assert found(out, "near = 0,0,30000km") == {"berlin.jpg", "tokyo.jpg"}
    assert found(out, "meta.near = here") == {"drawn.png"} == found(out, "meta.taken = 1990")
    (album / "berlin.jpg").write_bytes(jpeg("green", exif_of("2020:01:01 00:00:00", "", "Canon", "R5")))
    build_index(model, album, out)
    assert said(out)["berlin.jpg"] == {"file_name": "berlin.jpg", "camera": "Grandpa's", "taken": "1985-07"}
    (album / "metadata.jsonl").write_text(
        '{"file_name": "drawn.png", "date": "2022"}\n{"file_name": "tokyo.jpg", "date": "2024-02-31", "taken": null}'
    )
    report = build_index(model, album, out)
    assert report.described == 3 and "2024-02-31" in str(report.metadata_problems)
    assert found(out, "date < 2023") == {"berlin.jpg", "drawn.png"}
    assert found(out, "date = 2023") == {"tokyo.jpg"} == found(out, "meta.date = 2024-02-31")
    assert found(out, "date = 2024") == set()
    (album / "metadata.jsonl").unlink()
    report = build_index(model, album, out)
    assert (report.count, report.reused, report.described) == (3, 3, 2)
    assert said(out)["berlin.jpg"] == {"taken": "2020-01-01T00:00:00", "camera": "Canon R5"}
    assert set(said(out)) == {"berlin.jpg", "tokyo.jpg"}


def test_metadata_are_read_for_items_of_a_run_that_was_stopped(model: ColourModel, album: Path, tmp_path: Path):
    out, (_, *rest) = tmp_path / "index", sorted(album.glob("*.*"))
    (album / "metadata.jsonl").write_text(json.dumps({"file_name": rest[0].name, "mark": 1}))
    aside = [path.rename(tmp_path / path.name) for path in rest]
    build_index(model, album, out)
    for path in aside:
        path.rename(album / path.name)
    states = {path.name: path.stat() for path in rest}
    entries = [
        Entry(Item(name, state.st_mtime_ns, state.st_size), changed_ns=state.st_ctime_ns)
        for name, state in states.items()
    ]
    with (
        pytest.raises(KeyboardInterrupt),
        IndexWriter(out, model=model.fingerprint, roots=[Root(0, str(album), "")]) as writer,
    ):
        writer.append(entries, Index.open(out).gather(np.array([0, 0])))
        writer.commit()
        raise KeyboardInterrupt
    assert build_index(model, album, out).resumed == 2
    assert said(out)[rest[0].name]["mark"] == 1


@pytest.mark.medium
def test_videos_and_their_segments(tmp_path: Path):
    pytest.importorskip("av")
    (tmp_path / "clips").mkdir()
    write_video(tmp_path / "clips" / "a.mp4", {"com.apple.quicktime.creationdate": "2024-06-01T19:30:00+0900"})
    build_index(Posters(), tmp_path / "clips", tmp_path / "index", settings=IndexSettings(segment_seconds=0.2))
    assert len(found(tmp_path / "index", "taken = 2024-06-01T19:30")) >= 2


SENSELESS = ["near = 52.5,13.4", "near = 95,13,2km", "near < 1,1,1km", "near = 1,1,1", "taken ~ 2024*", "taken = soon"]


def test_conditions_that_make_no_sense_are_refused(failures: Failures):
    for text in SENSELESS:
        with failures.of(text), pytest.raises(DataError, match=f"{text.split()[0]}|{text.split()[-1]}"):
            parse_condition(text)


@pytest.mark.medium
def test_conditions_are_those_of_a_slow_loop(tmp_path: Path):
    draw = random.Random(5)
    items = {}
    for number in range(200):
        there: dict[str, object] = {}
        if draw.random() < 0.6:
            date = datetime(2024, 1, 1) + timedelta(minutes=draw.randrange(-60, 60 * 24 * 70))
            there["taken"] = date.isoformat() + draw.choice(["", "+02:00", ".50", "Z"])
            if draw.random() < 0.2:
                there["taken"] = draw.choice(["2024", "2024-02", "2024-02-01", "2024-02-01 10:00", "soon", 2024])
        if draw.random() < 0.7:
            there |= {"latitude": draw.uniform(-90, 90), "longitude": draw.uniform(-180, 180)}
        items[f"{number:03}.jpg"] = there
    changed = datetime(2024, 2, 1, 10)
    with IndexWriter(tmp_path, model="m", roots=[Root(0, "/nowhere", "")]) as writer:
        entries = [
            Entry(Item(name, int(changed.timestamp()) * 10**9, 1), header=json.dumps(there) if there else None)
            for name, there in items.items()
        ]
        writer.append(entries, np.ones((200, 1, 2), np.float32))

    def taken(there: dict[str, object]) -> datetime | None:
        text = str(there.get("taken", ""))[:19].replace("Z", "").replace(".50", "")
        for length, form in (
            (4, "%Y"),
            (7, "%Y-%m"),
            (10, "%Y-%m-%d"),
            (16, "%Y-%m-%d %H:%M"),
            (19, "%Y-%m-%dT%H:%M:%S"),
        ):
            if len(text) == length and text[:4].isdecimal():
                return datetime.strptime(text, form)
        return None

    signs = {"<": "__lt__", ">=": "__ge__"}
    for value, start, end in (
        ("2024-02", datetime(2024, 2, 1), datetime(2024, 3, 1)),
        ("2024-02-01", datetime(2024, 2, 1), datetime(2024, 2, 2)),
        ("2024-02-29", datetime(2024, 2, 29), datetime(2024, 3, 1)),
        ("2024-02-01T10:00", datetime(2024, 2, 1, 10), datetime(2024, 2, 1, 10, 1)),
    ):
        for field in ("taken", "date"):
            dates = {name: taken(there) or (changed if field == "date" else None) for name, there in items.items()}
            within = {name for name, date in dates.items() if date and start <= date < end}
            assert found(tmp_path, f"{field} = {value}") == within
            assert found(tmp_path, f"{field} != {value}") == set(items) - within
            for sign, bound in (("<", start), (">=", start), ("<=", end), (">", end)):
                compare = signs["<" if "<" in sign else ">="]
                fits = {name for name, date in dates.items() if date and getattr(date, compare)(bound)}
                assert found(tmp_path, f"{field} {sign} {value}") == fits

    def far(there: dict[str, object], latitude: float, longitude: float) -> float:
        if "latitude" not in there:
            return math.inf
        here = []  # two vectors from the centre of the earth
        for north, east in ((latitude, longitude), (there["latitude"], there["longitude"])):
            a, b = math.radians(north), math.radians(east)
            here.append((math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)))
        return 6371.009 * math.acos(max(-1, min(1, sum(x * y for x, y in zip(*here, strict=True)))))

    for latitude, longitude, radius in ((52.5, 13.4, 3000), (0, 179.9, 4000), (-89.9, 0, 5000), (10, 10, 20016)):
        near = {name for name, there in items.items() if far(there, latitude, longitude) <= radius}
        assert found(tmp_path, f"near = {latitude},{longitude},{radius}km") == near and near
        assert found(tmp_path, f"near != {latitude},{longitude},{radius * 1000} m") == set(items) - near


def test_numbers_held_as_texts_quotes_and_two_signs(model: ColourModel, album: Path, tmp_path: Path):
    out = tmp_path / "index"
    lines: list[dict[str, object]] = [
        {"file_name": "berlin.jpg", "rating": "10", "camera": "Canon EOS 5D", "size": "n/a"},
        {"file_name": "tokyo.jpg", "rating": " 4.0", "camera": "X100", "latitude": "35.7", "longitude": "139.7"},
        {"file_name": "drawn.png", "rating": 2, "title": "Rock AND Roll"},
    ]
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    build_index(model, album, out)
    assert found(out, "rating >= 3") == {"berlin.jpg", "tokyo.jpg"}
    assert found(out, "rating > 9") == found(out, "rating = 10.0") == {"berlin.jpg"}
    assert found(out, "rating == 4") == {"tokyo.jpg"} and found(out, "rating != 4") == {"berlin.jpg", "drawn.png"}
    assert found(out, "rating < 3") == {"drawn.png"}
    assert found(out, 'camera = "Canon EOS 5D"') == {"berlin.jpg"} and found(out, "camera = 'X100'") == {"tokyo.jpg"}
    assert found(out, "title = 'Rock AND Roll'") == {"drawn.png"}
    assert found(out, "near = 35.7,139.7,1km") == {"tokyo.jpg"}  # a place held as text is one, too


def test_texts_are_compared_as_words_are(tmp_path: Path):
    lines: dict[str, dict[str, object]] = {
        "Ähre/\uff211.JPG": {"title": "\u0130ZM\u0130R", "seen": "2024-05-31", "is": True, "note": ""},
        "b.jpg": {"title": "Straße", "seen": "2024-06-01T10:00:00", "is": "True", "note": "x"},
        "c.jpg": {"title": "soft\u00adhyphen", "seen": "2023", "is": "false", "note": "שָׁלוֹם"},
        "d.jpg": {"title": "STRASSE", "seen": "2024", "is": False, "note": ["\uff83\uff9a\uff8b\uff9e", "2024-05"]},
    }
    with IndexWriter(tmp_path, model="m", roots=[Root(0, "/nowhere", "")]) as writer:
        entries = [Entry(Item(name, 10**18, 1), header=json.dumps(line)) for name, line in lines.items()]
        writer.append(entries, np.ones((4, 1, 2), np.float32))
    first, *_ = lines
    for text, expected in {
        "title = izmir": [first],
        "title != \u0131zmir": ["b.jpg", "c.jpg", "d.jpg"],
        "title = strasse": ["b.jpg", "d.jpg"],
        "title ~ \uff33\uff2f\uff26\uff34\uff28*": ["c.jpg"],
        "title ~ [r-t]traß?": ["b.jpg", "d.jpg"],
        "title < K": [first],
        "path = ahre/a1.jpg": [first],
        "path ~ AHRE/*": [first],
        "path ~ *.jpg": [*lines],
        "note = שלום": ["c.jpg"],
        "note contains テレビ": ["d.jpg"],
        'note = ""': [first],
        "title = “Straße”": ["b.jpg", "d.jpg"],
        "'title' == «Straße»": ["b.jpg", "d.jpg"],
        "is = TRUE": [first, "b.jpg"],
        "is != true": ["c.jpg", "d.jpg"],
        "seen = 2024-05": [first],
        "seen ≤ 2024-05": [first, "c.jpg", "d.jpg"],
        "seen > 2024-05": ["b.jpg"],
        "seen ≠ 2024-06-01": [first, "c.jpg", "d.jpg"],
        "note ≥ 2024-05": ["d.jpg"],
        "note < 9": [],
    }.items():
        assert (text, sorted(found(tmp_path, text))) == (text, sorted(expected))


SEVERAL = [
    "camera contains EOS AND tags = snow",
    "camera = a&&tags=snow",
    "camera = a || tags = snow",
    "camera = a, tags = snow",
    "camera = a;tags contains snow",
    'camera = "a',
    "year ≥= 3",
    "camera = a and tags = snow",
    "tags = a OR b",
    "rating => 3",
    "year <> 3",
    "n === 2",
]


def test_what_is_not_one_condition_is_refused(failures: Failures):
    for text in SEVERAL:
        with failures.of(text), pytest.raises(DataError, match="--where"):
            parse_condition(text)


CLOCKS = {
    "T": ("10", "10:30", "10:30:15", "10:30:15.5", "10:30:15,25"),
    "t": ("10:30:15.5",),
    " ": ("10", "10:30:15.5"),
}
OFFSETS = ("", "Z", "z", "+02:00", "+0200", "-05", " +02:00")


def test_a_time_means_the_same_with_and_without_an_offset():
    for mark, clocks in CLOCKS.items():
        for clock in clocks:
            whole = f"2024-05-01T{clock[:8]}"
            expected = parse_condition(f"date = {whole}").span()
            assert expected[0] == datetime.fromisoformat(whole)
            for offset in OFFSETS:
                date = f"2024-05-01{mark}{clock}{offset}"
                assert parse_condition(f"date = {date}").span() == expected, date
                assert taken_at(date) == expected[0].isoformat() and taken_at(iso_date(date)) == taken_at(date), date
    for bad in ("2024-05T10", "2024-02-31", "2024-05-01T25", "2024-05-01T10:00.5", "2024-05-01T10:30+2", "2024T10:00"):
        assert taken_at(bad) is None
        with pytest.raises(DataError, match=".*2024-05-31"):
            parse_condition(f"date = {bad}")


def test_dates_of_users_are_read_or_named(model: ColourModel, album: Path, tmp_path: Path):
    out, given = (
        tmp_path / "index",
        {
            "a.png": "2024:05:01 10:00:00",
            "b.png": "01.05.2024",
            "c.png": "2024-5-1",
            "d.png": "2024-05-01T10:00:00+02:00",
            "e.png": 1714550400,
            "f.png": "May",
        },
    )
    for name in given:
        paint(album / name, "red")
    lines = [{"file_name": name, "taken": date} for name, date in given.items()]
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = build_index(model, album, out)
    assert found(out, "taken = 2024-05-01") == {"a.png", "b.png", "c.png", "d.png"}
    assert found(out, "taken = 2024-05-01T10:00:00") == {"a.png", "d.png"}
    (problem,) = report.metadata_problems
    assert "'taken'" in problem and "1714550400" in problem


def test_metadata_of_a_link_outside_and_numbers_that_json_cannot_hold(model: ColourModel, album: Path, tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"file_name": "drawn.png", "title": "a secret"}\n')
    (album / "metadata.jsonl").symlink_to(secret)
    report = build_index(model, album, tmp_path / "index")
    assert "drawn.png" not in said(tmp_path / "index") and len(report.metadata_problems) == 1
    (album / "metadata.jsonl").unlink()
    (album / "metadata.jsonl").write_text('{"file_name": "drawn.png", "height": 1e999, "rating": 3}\n')
    build_index(model, album, tmp_path / "index")
    assert said(tmp_path / "index")["drawn.png"]["height"] is None
    assert found(tmp_path / "index", "rating = 3") == {"drawn.png"}


@pytest.mark.parametrize("is_pipe", [True, False])
def test_metadata_that_are_no_file_are_told(model: ColourModel, album: Path, tmp_path: Path, is_pipe: bool) -> None:
    if is_pipe:  # nothing waits for it
        os.mkfifo(album / "metadata.jsonl")
    else:
        (album / "metadata.jsonl").symlink_to(tmp_path / "on_a_disk_that_is_gone.jsonl")
    report = build_index(model, album, tmp_path / "index")
    assert report.count == 3 and len(report.metadata_problems) == 1
    assert "metadata.jsonl" in report.metadata_problems[0]
    (album / "metadata.jsonl").unlink()
    (album / "metadata.jsonl").write_text('{"file_name": "drawn.png", "rating": 3}')
    assert build_index(model, album, tmp_path / "index").metadata_problems == []
    assert found(tmp_path / "index", "rating = 3") == {"drawn.png"}


def test_metadata_may_give_a_file_another_of_its_names(model: ColourModel, album: Path, tmp_path: Path):
    (album / "0.png").symlink_to(album / "drawn.png")
    (album / "hard.png").hardlink_to(album / "drawn.png")
    lines = [{"file_name": "0.png", "title": "a link"}, {"file_name": "hard.png", "rating": 3}]
    (album / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = build_index(model, album, tmp_path / "index")
    about = said(tmp_path / "index")["drawn.png"]
    assert (about["title"], about["rating"], report.metadata_problems) == ("a link", 3, [])


def test_metadata_that_the_database_cannot_read_are_mended(
    model: ColourModel, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One such line would make every condition fail."""
    exif = Said(FactSource.EXIF, {"gain": float("inf"), "mark": 1})
    monkeypatch.setattr("openvse.media.sidecars.said_by", lambda *_: [exif])
    (album / "metadata.jsonl").write_text('{"file_name": "drawn.png", "rating": 3}\n')
    build_index(model, album, tmp_path / "index")
    assert said(tmp_path / "index")["drawn.png"] == {"file_name": "drawn.png", "rating": 3, "gain": None, "mark": 1}
    assert found(tmp_path / "index", "rating = 3") == {"drawn.png"}


def test_images_in_place_of_their_folder_are_named(model: ColourModel, album: Path, tmp_path: Path):
    with pytest.raises(DataError, match="berlin.jpg.*album") as caught:
        build_index(model, sorted(album.glob("*.jpg")), tmp_path / "index")
    assert "UTF" not in str(caught.value)
