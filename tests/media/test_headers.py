"""What headers say, and that wrong ones say nothing."""

import io
import struct
from datetime import datetime
from pathlib import Path

import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import IFDRational

from openvse.media.headers import _spelled
from photographs import exif_of, jpeg, read_header, write_video, xmp_of
from tests.failures import Failures

BERLIN = (52.516278, 13.377694)
EXIF = exif_of("2024:06:01 12:30:00", "+02:00", "NIKON CORPORATION\0", "NIKON D850 ", BERLIN)
SAID = {
    "taken": "2024-06-01T12:30:00+02:00", "camera": "NIKON D850", "latitude": 52.516278, "longitude": 13.377694
}  # fmt: skip


def header(tmp_path: Path, content: bytes, name: str = "a.jpg") -> dict[str, object]:
    (tmp_path / name).write_bytes(content)
    return read_header(tmp_path / name)


def test_exif_comes_before_xmp_and_that_before_iptc(tmp_path: Path):
    iptc = {25: [b"dog", "Straße".encode("latin-1"), b"snow"], 5: [b"other"], 120: ["Grüße aus Köln".encode()]}
    content = jpeg("red", EXIF, xmp_of("Oma & Opa", "snow", "Grandma"), iptc)
    said = {**SAID, "title": "Oma & Opa", "description": "Grüße aus Köln", "keywords": ["snow", "Grandma"]}
    assert header(tmp_path, content) == said


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JXL", "HEIF", "AVIF", "DNG"])
def test_exif_of_other_formats(tmp_path: Path, kind: str):
    if kind in ("JXL", "HEIF"):
        module = pytest.importorskip({"JXL": "pillow_jxl", "HEIF": "pillow_heif"}[kind])
        getattr(module, "register_heif_opener", bool)()
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, kind.replace("DNG", "TIFF"), exif=EXIF.tobytes())
    assert header(tmp_path, file.getvalue(), f"a.{kind.lower()}") == SAID


CAMERAS = [
    ("Canon", "Canon EOS 80D", "Canon EOS 80D"),
    ("SONY", "ILCE-7M3", "SONY ILCE-7M3"),
    ("OLYMPUS IMAGING CORP.", "E-M5", "OLYMPUS E-M5"),
    ("EASTMAN KODAK COMPANY", "KODAK Z712", "KODAK Z712"),
    (b"Caf\xe9\0\xff\xff", "X", "Café X"),
    ("", "X100", "X100"),
    ("Leica Camera AG", "", "Leica Camera"),
]


def test_names_of_cameras(tmp_path: Path, failures: Failures):
    for maker, model, camera in CAMERAS:
        with failures.of(maker, model, camera):
            assert header(tmp_path, jpeg("red", exif_of("", "", maker, model))) == {"camera": camera}


WRONG_DATES = [
    "0000:00:00 00:00:00",
    "    :  :     :  :  ",
    "2024:13:01 12:00:00",
    "2024:02:30 12:00:00",
    "0999:01:01 00:00:00",
    "2024:06:01 25:00:00",
    "1970:01:01 00:00:00",
    "yesterday",
    b"\xff\xfe\0",
    "20240",
]


def test_a_wrong_date_is_none(tmp_path: Path, failures: Failures):
    for taken in WRONG_DATES:
        with failures.of(taken):
            assert header(tmp_path, jpeg("red", exif_of(taken))) == {}


def dated(name: str, value: str) -> bytes:
    """Return XMP that holds one date."""
    at = "http://ns.adobe.com"
    spaces = f'xmlns:exif="{at}/exif/1.0/" xmlns:photoshop="{at}/photoshop/1.0/" xmlns:xmp="{at}/xap/1.0/"'
    rdf = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    return f'<r:RDF xmlns:r="{rdf}"><r:Description {spaces} {name}="{value}"/></r:RDF>'.encode()


SCAN_DATES = [
    ("photoshop:DateCreated", "1975", "1975"),
    ("photoshop:DateCreated", "1975-06", "1975-06"),
    ("photoshop:DateCreated", "1975-06-14", "1975-06-14"),
    ("photoshop:DateCreated", "1970-01-01", "1970-01-01"),
    ("exif:DateTimeOriginal", "1975-06-14T10:00+01:00", "1975-06-14T10:00:00+01:00"),
    ("photoshop:DateCreated", "1975-06-14T10-05:30", "1975-06-14T10:00:00-05:30"),
    ("exif:DateTimeOriginal", "1975-06+02:00", "1975-06"),
    ("photoshop:DateCreated", "1975-06-14Z", "1975-06-14"),
    ("xmp:CreateDate", "1975-06", "2020-01-01T12:00:00"),
    ("photoshop:DateCreated", "in summer 1975", None),
    ("photoshop:DateCreated", "1975-13", None),
    ("photoshop:DateCreated", "0000-00-00", "2020-01-01T12:00:00"),
    ("photoshop:DateCreated", "unknown", "2020-01-01T12:00:00"),
]


def test_the_day_of_a_scan_counts_only_where_no_other_is_stated(tmp_path: Path, failures: Failures):
    for name, value, taken in SCAN_DATES:
        with failures.of(name, value, taken):
            scanned = exif_of()
            scanned.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeDigitized] = "2020:01:01 12:00:00"
            assert header(tmp_path, jpeg("red", scanned, dated(name, value))).get("taken") == taken


@pytest.mark.parametrize("name", ["xmp:CreateDate", "exif:DateTimeDigitized"])
def test_xmp_says_when_a_picture_was_scanned_if_exif_does_not(tmp_path: Path, name: str):
    assert header(tmp_path, jpeg("red", None, dated(name, "2020-01"))) == {"taken": "2020-01"}


def test_a_png_says_when_it_was_made(tmp_path: Path):
    told, file = PngInfo(), io.BytesIO()
    told.add_text("Creation Time", "2011:02:03 04:05:06")
    Image.new("RGB", (9, 9)).save(file, "PNG", pnginfo=told)
    assert header(tmp_path, file.getvalue(), "a.png") == {"taken": "2011-02-03T04:05:06"}


@pytest.mark.parametrize(
    ("written", "coded", "text"),
    [
        ("iso8859-2", b"\x1b-B", "Žižkov"),
        ("iso8859-5", b"\x1b-L", "Привет"),
        ("utf-8", b"\x1b%G", "雪"),
        ("utf-16", b"", "Žižkov"),
    ],
)
def test_iptc_names_its_encoding(tmp_path: Path, written: str, coded: bytes, text: str):
    assert header(tmp_path, jpeg("red", None, b"", {5: [text.encode(written)]}, coded)) == {"title": text}


IPTC_DATES = [
    ({55: [b"19750614"], 60: [b"103000+0100"]}, "1975-06-14T10:30:00+01:00"),
    ({55: [b"19750614"]}, "1975-06-14"),
    ({55: [b"19750600"], 60: [b"000000"]}, "1975-06"),
    ({55: [b"19750000"]}, "1975"),
    ({60: [b"103000+0100"]}, None),
]


def test_iptc_dates_a_picture(tmp_path: Path, failures: Failures):
    for iptc, taken in IPTC_DATES:
        with failures.of(iptc, taken):
            assert header(tmp_path, jpeg("red", None, b"", iptc)).get("taken") == taken


PARTIAL_DATES = [
    ("1975", "1975"),
    ("1975:06:  ", "1975-06"),
    ("1975:00:00 00:00:00", "1975"),
    ("1975:06:14", "1975-06-14"),
    ("1975:06:14   :  :  ", "1975-06-14"),
]


def test_exif_leaves_out_what_is_not_known_of_a_date(tmp_path: Path, failures: Failures):
    for written, taken in PARTIAL_DATES:
        with failures.of(written, taken):
            assert header(tmp_path, jpeg("red", exif_of(written))) == {"taken": taken}


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_texts_are_utf_8_or_of_windows(tmp_path: Path, encoding: str):
    words, exif = (
        "Œuvre d\N{RIGHT SINGLE QUOTATION MARK}été à Müllerwald",
        exif_of(maker="Bücher".encode(encoding), model="Modèle Š".encode(encoding)),
    )
    exif[ExifTags.Base.ImageDescription] = words.encode(encoding) + b"\0\xff\xff"
    said = {"camera": "Bücher Modèle Š", "description": words}
    assert header(tmp_path, jpeg("red", exif)) == said
    raw = io.BytesIO()
    Image.new("RGB", (64, 48)).save(raw, "TIFF", exif=exif)
    assert header(tmp_path, raw.getvalue(), "a.dng") == said
    iptc = {5: [words.encode(encoding)], 25: ["Škoda".encode(encoding), b"caf\xe9"]}
    found = header(tmp_path, jpeg("red", None, b"", iptc))
    assert found == {"title": words, "keywords": ["Škoda", "café"]}


def test_a_wrong_offset_is_left_out(tmp_path: Path):
    for offset in ("+99:00", "   :  ", "+0200"):
        found = header(tmp_path, jpeg("red", exif_of("2024:06:01 12:30:00", offset)))
        assert found == {"taken": "2024-06-01T12:30:00" + ("+02:00" if offset == "+0200" else "")}


WRONG_PLACES = [
    (0.0, 0.0),
    {1: "N", 2: (IFDRational(52, 0), 0.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)},
    {1: "N", 2: (95.0, 0.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)},
    {1: "N", 2: (52.0, 0.0, 0.0), 3: "E", 4: (181.0, 0.0, 0.0)},
    {2: (52.0, 0.0, 0.0), 4: (13.0, 0.0, 0.0)},
    {1: "N", 2: (52.0, 0.0, 0.0, 1.0), 3: "E", 4: (13.0, 0.0, 0.0)},
]


def test_a_wrong_place_is_none(tmp_path: Path, failures: Failures):
    for place in WRONG_PLACES:
        with failures.of(place):
            assert header(tmp_path, jpeg("red", exif_of("", place=place))) == {}


def test_a_place_has_degrees_perhaps_with_minutes_and_seconds(tmp_path: Path):
    minutes = {1: "S", 2: (33.0, 30.0), 3: "W", 4: (70.0, 15.0)}
    for place in (minutes, {1: "S", 2: 33.5, 3: "W", 4: (70.25,)}, (-33.5, -70.25)):
        assert header(tmp_path, jpeg("red", exif_of("", place=place))) == {"latitude": -33.5, "longitude": -70.25}


def test_damaged_headers_say_nothing(tmp_path: Path):
    whole = jpeg("red", EXIF, xmp_of("title", "snow"), {25: [b"dog"]})
    for at in range(2, len(whole), 37):
        header(tmp_path, whole[:at])
        header(tmp_path, whole[:at] + b"\xff" * 9 + whole[at + 9 :])
    bomb = b'<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;">]>' + xmp_of("&b;", "snow")
    assert header(tmp_path, jpeg("red", None, bomb)) == {}
    assert header(tmp_path, b"", "a.mp4") == header(tmp_path, b"", "a.jxl") == header(tmp_path, b"?", "a.dng") == {}


@pytest.mark.medium
def test_videos_say_when_and_where_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("av")
    said = {"creation_time": "2024-06-01T10:30:00.000000Z", "location": "+52.5163+013.3777/", "title": "Goal"}
    here = datetime.fromisoformat("2024-06-01T10:30:00+00:00").astimezone().isoformat()
    place = {"latitude": 52.5163, "longitude": 13.3777, "title": "Goal"}
    assert read_header(write_video(tmp_path / "a.mp4", said)) == {"taken": here, **place}
    said["com.apple.quicktime.creationdate"] = "2024-06-01T19:30:00+0900"  # by the clock at the place
    said["com.apple.quicktime.make"], said["com.apple.quicktime.model"] = "Apple", "iPhone 12"
    said["com.apple.quicktime.keywords"] = "sea, sun"
    found = read_header(write_video(tmp_path / "b.mov", said))
    whole = {"taken": "2024-06-01T19:30:00+09:00", "camera": "Apple iPhone 12", **place, "keywords": ["sea", "sun"]}
    assert found == whole
    packet = bytes.fromhex("be7acfcb97a942e89c71999491e3afac") + xmp_of("Finals", "snow")
    with (tmp_path / "b.mov").open("ab") as file:
        file.write(struct.pack(">I", len(packet) + 8) + b"uuid" + packet)
    assert read_header(tmp_path / "b.mov") == {**whole, "title": "Finals", "keywords": ["snow"]}
    plain = write_video(tmp_path / "c.mp4", {"title": "Łódź", "date": "2019-05-06T07:08:09+0200"})
    assert read_header(plain) == {"title": "Łódź", "taken": "2019-05-06T07:08:09+02:00"}
    assert [*map(_spelled, ("≈Å√≥d≈∫", "Łódź", "Äpfel", "a"))] == ["Łódź", "Łódź", "Äpfel", "a"]


def test_no_pixel_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = {}
    for kind in ("PNG", "JPEG", "WEBP", "TIFF"):
        files[kind] = io.BytesIO()
        Image.new("RGB", (64, 48)).save(files[kind], kind)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    for kind, file in files.items():
        assert header(tmp_path, file.getvalue(), f"a.{kind}") == {}
