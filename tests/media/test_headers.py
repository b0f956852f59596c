"""What headers say, and that wrong ones say nothing."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from openvse.media.headers import read_header
from photographs import exif_of, jpeg, write_video, xmp_of

BERLIN = (52.516278, 13.377694)
EXIF = exif_of("2024:06:01 12:30:00", "+02:00", "NIKON CORPORATION\0", "NIKON D850 ", BERLIN)
SAID = {
    "taken": "2024-06-01T12:30:00+02:00", "camera": "NIKON D850", "latitude": 52.516278, "longitude": 13.377694
}  # fmt: skip


def header(tmp_path: Path, content: bytes, name: str = "a.jpg") -> dict[str, object]:
    (tmp_path / name).write_bytes(content)
    return read_header(tmp_path / name)


def test_exif_xmp_and_iptc_are_joined(tmp_path: Path):
    iptc = {
        25: [b"dog", "Straße".encode("latin-1"), b"snow"],
        5: [b"other"],
        120: ["Grüße aus Köln".encode()],
    }
    content = jpeg("red", EXIF, xmp_of("Oma & Opa", "snow", "Grandma"), iptc)
    assert header(tmp_path, content) == {
        **SAID,
        "title": "Oma & Opa",
        "description": "Grüße aus Köln",
        "keywords": ["snow", "Grandma", "dog", "Straße"],
    }


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JXL", "HEIF", "AVIF"])
def test_exif_of_other_formats(tmp_path: Path, kind: str):
    if kind in ("JXL", "HEIF"):
        module = pytest.importorskip({"JXL": "pillow_jxl", "HEIF": "pillow_heif"}[kind])
        getattr(module, "register_heif_opener", bool)()
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, kind, exif=EXIF.tobytes())
    assert header(tmp_path, file.getvalue(), f"a.{kind.lower()}") == SAID


@pytest.mark.parametrize(
    ("maker", "model", "camera"),
    [
        ("Canon", "Canon EOS 80D", "Canon EOS 80D"),
        ("SONY", "ILCE-7M3", "SONY ILCE-7M3"),
        ("OLYMPUS IMAGING CORP.", "E-M5", "OLYMPUS E-M5"),
        ("EASTMAN KODAK COMPANY", "KODAK Z712", "KODAK Z712"),
        (b"Caf\xe9\0\xff\xff", "X", "Café X"),
        ("", "X100", "X100"),
        ("Leica Camera AG", "", "Leica Camera"),
    ],
)
def test_names_of_cameras(tmp_path: Path, maker: object, model: str, camera: str):
    assert header(tmp_path, jpeg("red", exif_of("", "", maker, model))) == {"camera": camera}


@pytest.mark.parametrize(
    "taken",
    ["0000:00:00 00:00:00", "    :  :     :  :  ", "2024:13:01 12:00:00", "2024:02:30 12:00:00", "0999:01:01 00:00:00",
     "2024:06:01 25:00:00", "1970:01:01 00:00:00", "yesterday", b"\xff\xfe\0", "2024"],
)  # fmt: skip
def test_a_wrong_date_is_none(tmp_path: Path, taken: object):
    assert header(tmp_path, jpeg("red", exif_of(taken))) == {}


def test_a_wrong_offset_is_left_out(tmp_path: Path):
    for offset in ("+99:00", "   :  ", "+0200"):
        found = header(tmp_path, jpeg("red", exif_of("2024:06:01 12:30:00", offset)))
        assert found == {"taken": "2024-06-01T12:30:00" + ("+02:00" if offset == "+0200" else "")}


@pytest.mark.parametrize(
    "place",
    [
        (0.0, 0.0),
        {1: "N", 2: (IFDRational(52, 0), 0.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)},
        {1: "N", 2: (95.0, 0.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)},
        {1: "N", 2: (52.0, 0.0, 0.0), 3: "E", 4: (181.0, 0.0, 0.0)},
        {2: (52.0, 0.0, 0.0), 4: (13.0, 0.0, 0.0)},
        {1: "N", 2: (52.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)},
    ],
)
def test_a_wrong_place_is_none(tmp_path: Path, place: object):
    assert header(tmp_path, jpeg("red", exif_of("", place=place))) == {}


def test_south_and_west(tmp_path: Path):
    found = header(tmp_path, jpeg("red", exif_of(place=(-33.5, -70.25))))
    assert found == {"latitude": -33.5, "longitude": -70.25}


def test_damaged_headers_say_nothing(tmp_path: Path):
    whole = jpeg("red", EXIF, xmp_of("title", "snow"), {25: [b"dog"]})
    for at in range(2, len(whole), 37):
        header(tmp_path, whole[:at])
        header(tmp_path, whole[:at] + b"\xff" * 9 + whole[at + 9 :])
    bomb = b'<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;">]>' + xmp_of("&b;", "snow")
    assert header(tmp_path, jpeg("red", None, bomb)) == {}
    assert (
        header(tmp_path, b"", "a.mp4")
        == header(tmp_path, b"", "a.jxl")
        == header(tmp_path, b"?", "a.dng")
        == {}
    )


@pytest.mark.medium
def test_videos_say_when_and_where_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("av")
    said = {"creation_time": "2024-06-01T10:30:00.000000Z", "location": "+52.5163+013.3777/", "title": "Goal"}
    here = datetime.fromisoformat("2024-06-01T10:30:00+00:00").astimezone().isoformat()
    place = {"latitude": 52.5163, "longitude": 13.3777, "title": "Goal"}
    assert read_header(write_video(tmp_path / "a.mp4", said)) == {"taken": here, **place}
    said["com.apple.quicktime.creationdate"] = "2024-06-01T19:30:00+0900"  # by the clock at the place
    said["com.apple.quicktime.make"], said["com.apple.quicktime.model"] = "Apple", "iPhone 12"
    found = read_header(write_video(tmp_path / "b.mov", said))
    assert found == {"taken": "2024-06-01T19:30:00+09:00", "camera": "Apple iPhone 12", **place}


def test_no_pixel_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = {}
    for kind in ("PNG", "JPEG", "WEBP", "TIFF"):
        files[kind] = io.BytesIO()
        Image.new("RGB", (64, 48)).save(files[kind], kind)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    for kind, file in files.items():
        assert header(tmp_path, file.getvalue(), f"a.{kind}") == {}
