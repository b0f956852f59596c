"""What other programs wrote: people, ratings and places of XMP, names of sidecars, a Takeout, and dates in names."""

import hashlib
import io
import json
import struct
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from openvse.media.headers import date_in_name, read_xmp
from openvse.media.ranks import ranked_facts
from openvse.media.sidecars import FileFacts, Sidecars, read_facts, sidecar_problems
from photographs import bag, exif_of, jpeg, read_header, xmp_of, xmp_packet
from tests.failures import Failures


def takeout(title: str, **more: object) -> str:
    return json.dumps({"title": title, "photoTakenTime": {"timestamp": "1717237800"}, **more})


REGIONS = (
    '<mwg-rs:Regions rdf:parseType="Resource"><mwg-rs:RegionList><rdf:Bag>'
    '<rdf:li><rdf:Description mwg-rs:Name="Grandma" mwg-rs:Type="Face"/></rdf:li>'
    '<rdf:li rdf:parseType="Resource"><mwg-rs:Name>Jürgen</mwg-rs:Name><mwg-rs:Type>Face</mwg-rs:Type></rdf:li>'
    '<rdf:li><rdf:Description mwg-rs:Name="here" mwg-rs:Type="Focus"/></rdf:li>'
    "</rdf:Bag></mwg-rs:RegionList></mwg-rs:Regions>"
)

XMP = [
    (xmp_packet("", REGIONS + bag("Iptc4xmpExt:PersonInImage", "Zoe", "Grandma")),
     {"people": ["Grandma", "Jürgen", "Zoe"]}),
    (xmp_packet("", bag("lr:hierarchicalSubject", "places|berlin")), {"tags": ["places|berlin"]}),
    (xmp_packet("", bag("digiKam:TagsList", "places/berlin")), {"tags": ["places|berlin"]}),
    (xmp_packet("", bag("lr:hierarchicalSubject", "music|AC/DC") + bag("digiKam:TagsList", "a/b")),
     {"tags": ["music|AC/DC", "a|b"]}),
    (xmp_packet("", '<dc:title rdf:parseType="Resource"><rdf:value>Gran</rdf:value><xmp:Label>q</xmp:Label>'
            "</dc:title>"), {"title": "Gran"}),
    (xmp_packet("", '<xmp:Label><rdf:Description rdf:value="Red" xmp:Rating="5"/></xmp:Label>'),
     {"color_label": "Red"}),
    (xmp_packet("", bag("dc:subject", '<rdf:Description><rdf:value>one</rdf:value><dc:title/></rdf:Description>', "two",
                         "<rdf:Seq><rdf:li>three</rdf:li></rdf:Seq>")), {"keywords": ["one", "two", "three"]}),
    (xmp_packet("", '<dc:title><rdf:Alt><rdf:li xml:lang="de">Oma</rdf:li><rdf:li xml:lang="x-default">'
                    "<rdf:Description><rdf:value>Gran</rdf:value></rdf:Description></rdf:li></rdf:Alt></dc:title>"),
     {"title": "Gran"}),
    (xmp_packet("", "<xmp:Thumbnails>" + bag("dc:subject", "another picture") + "</xmp:Thumbnails>"), {}),
    (xmp_packet("", "<dc:subject>" * 99 + "<rdf:Bag><rdf:li>deep</rdf:li></rdf:Bag>" + "</dc:subject>" * 99), {}),
    (b'<Description xmlns="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:x="http://ns.adobe.com/xap/1.0/" '
     b'x:Label="a"/>',
     {"color_label": "a"}),
    (xmp_packet("", bag("dc:subject", *map(str, range(999)))), {"keywords": [*map(str, range(200))]}),
    (xmp_packet('xmp:Rating="4" xmp:Label="Red"'), {"rating": 4, "color_label": "Red"}),
    (xmp_packet("", "<xmp:Rating>3.5</xmp:Rating>"), {"rating": 3.5}),
    (xmp_packet('xmp:Rating="-1"'), {"rating": -1}),
    (xmp_packet('xmp:Rating="0"'), {"rating": 0}),
    (xmp_packet('xmp:Rating="6"'), {}),
    (xmp_packet('xmp:Rating="nan"'), {}),
    (xmp_packet('exif:GPSLatitude="52,31.5N" exif:GPSLongitude="13,24,36W"'),
     {"latitude": 52.525, "longitude": -13.41}),
    (xmp_packet('exif:GPSLatitude="-33.5" exif:GPSLongitude="70.25"'), {"latitude": -33.5, "longitude": 70.25}),
    (xmp_packet('exif:GPSLatitude="95,0N" exif:GPSLongitude="13,0E"'), {}),
    (xmp_packet('exif:GPSLatitude="52,31.5N"'), {}),
    (xmp_packet('photoshop:DateCreated="2020-05-06T07:08:09+02:00"'), {"taken": "2020-05-06T07:08:09+02:00"}),
    (xmp_packet("", '<dc:title><rdf:Alt><rdf:li xml:lang="de">Oma</rdf:li><rdf:li xml:lang="x-default">Gran</rdf:li>'
            "</rdf:Alt></dc:title>"), {"title": "Gran"}),
    (xmp_packet().decode().encode("utf-16"), {}),
    (b"", {}),
]  # fmt: skip


def test_what_xmp_says() -> None:
    failures = Failures()
    for content, said in XMP:
        with failures.of(said):
            assert ranked_facts([read_xmp(content)]) == said
    assert not failures, failures


NAMES = [
    ("IMG-20200101-WA0001.jpg", "2020-01-01"),
    ("IMG_20200101_123456.jpg", "2020-01-01T12:34:56"),
    ("20200101_123456.jpg", "2020-01-01T12:34:56"),
    ("Screenshot_20200101-123456.png", "2020-01-01T12:34:56"),
    ("Screenshot_2020-01-01-12-34-56.png", "2020-01-01T12:34:56"),
    ("WhatsApp Image 2020-01-01 at 12.34.56.jpeg", "2020-01-01T12:34:56"),
    ("signal-2020-01-01-123456.jpg", "2020-01-01T12:34:56"),
    ("2020-01-01 12.34.56.jpg", "2020-01-01T12:34:56"),
    ("VID_20200101_123456789.mp4", "2020-01-01T12:34:56"),
    ("PXL_20230102_030405678.jpg", "2023-01-02T03:04:05Z"),
    ("holiday 2020-01-01.jpg", "2020-01-01"),
    ("Screenshot 2023-05-31 at 11.30.00 PM.png", "2023-05-31T23:30:00"),
    ("Screenshot 2023-05-31 at 12.30.00\u202fAM (2).png", "2023-05-31T00:30:00"),
    ("WhatsApp Image 2020-01-01 at 9.34.56 pm.jpeg", "2020-01-01T21:34:56"),
    ("Bildschirmfoto 2023-05-31 um 18.30.00.png", "2023-05-31T18:30:00"),
    ("Captura de pantalla 2023-05-31 a las 18.30.00.png", "2023-05-31T18:30:00"),
    ("截屏2023-05-31 18.30.00.png", "2023-05-31T18:30:00"),
    ("20200101T103000Z.jpg", "2020-01-01T10:30:00Z"),
    ("2020-01-01T10-30-00+0200.jpg", "2020-01-01T10:30:00+02:00"),
    ("IMG20200101123456.jpg", "2020-01-01T12:34:56"),
    ("BURST20200101123456789_COVER.jpg", "2020-01-01T12:34:56"),
    ("IMG_20200101_123456HDR.jpg", "2020-01-01T12:34:56"),
    ("IMG_20200101_1234567.jpg", "2020-01-01"),
    ("2020-01-01_12345.jpg", "2020-01-01"),
    ("2020-01-01-10 scans.jpg", "2020-01-01"),
    ("2020-01-01b.jpg", "2020-01-01"),
    ("2019-05-04 copy of 20200101_101010.jpg", "2020-01-01T10:10:10"),
    ("2019-05-04 - 2019-05-10 Italy.jpg", None),
    ("2019-05-04_2020-01-01.jpg", None),
    ("20190504-20190510.jpg", None),
    ("20200101_999999.jpg", None),
    ("20200101_1234567.jpg", None),
    ("photo_20201015x1080.jpg", None),
    ("photo-9f20200101ab.jpg", None),
    ("2020.01.01.2.png", None),
    ("v1.2020.01.01.png", None),
    ("12020-01-01.jpg", None),
    ("2020-02-30.jpg", None),
    ("20200101.jpg", None),
    ("IMG_20201301.jpg", None),
    ("IMG_20200230.jpg", None),
    ("1000268201_693b08cb0e.jpg", None),
    ("DSC02020.jpg", None),
    ("a.jpg", None),
]


def test_dates_in_names(tmp_path: Path) -> None:
    failures = Failures()
    for name, date in NAMES:
        with failures.of(name):
            assert date_in_name(name) == date
    assert not failures, failures
    (tmp_path / NAMES[0][0]).write_bytes(jpeg())
    assert read_header(tmp_path / NAMES[0][0]) == {"taken": "2020-01-01"}
    (tmp_path / NAMES[0][0]).write_bytes(jpeg("red", exif_of("2019:06:01 10:00:00")))
    assert read_header(tmp_path / NAMES[0][0]) == {"taken": "2019-06-01T10:00:00"}
    (tmp_path / NAMES[0][0]).write_bytes(jpeg("red", exif_of("in summer 1975")))
    assert read_header(tmp_path / NAMES[0][0]) == {}


@pytest.mark.parametrize("is_stale", [False, True])
def test_iptc_comes_first_only_if_its_digest_says_so(tmp_path: Path, is_stale: bool) -> None:
    """A program that writes both notes a digest of IPTC; another one has changed IPTC alone."""
    data = b"\x1c\x02\x05" + struct.pack(">H", 4) + b"iptc"
    digest = hashlib.md5(b"before" if is_stale else data).digest()
    blocks = b"".join(
        b"8BIM" + struct.pack(">H", number) + b"\0\0" + struct.pack(">I", len(each)) + each + b"\0" * (len(each) % 2)
        for number, each in ((0x0404, data), (0x0425, digest))
    )
    block = b"Photoshop 3.0\0" + blocks
    content = jpeg("red", None, xmp_of("xmp"))
    content = content[:2] + b"\xff\xed" + struct.pack(">H", len(block) + 2) + block + content[2:]
    (tmp_path / "a.jpg").write_bytes(content)
    assert read_header(tmp_path / "a.jpg") == {"title": "iptc" if is_stale else "xmp"}


def test_exif_describes_a_picture_before_xmp(tmp_path: Path) -> None:
    exif, described = exif_of(), "<dc:description><rdf:Alt><rdf:li>xmp</rdf:li></rdf:Alt></dc:description>"
    exif[ExifTags.Base.ImageDescription] = "exif"
    (tmp_path / "a.jpg").write_bytes(jpeg("red", exif, xmp_packet("", described)))
    assert read_header(tmp_path / "a.jpg") == {"description": "exif"}


LONG = "a_name_that_is_longer_than_what_a_takeout_keeps_of_it"
WIDE = "旅行の写真とても長い名前のファイルで切られるもの"
ACCENTED = "Ünterwegs_im_Grünen_mit_der_ganzen_größeren_Familie_und_Ömi"
MORE = ".supplemental-metadata"
# The files of a folder, each sidecar with its title (None for XMP), and the sidecars of each file.
BESIDE: list[tuple[dict[str, list[str]], dict[str, str | None]]] = [
    ({"a.jpg": ["a.jpg.xmp", "a.xmp", "a.jpg.json"]}, {"a.xmp": None, "a.jpg.json": "a.jpg", "a.jpg.xmp": None}),
    ({"a.jpg": ["a.xmp"], "a.dng": ["a.xmp"]}, {"a.xmp": None}),
    ({"sub/a.jpg": ["sub/a.XMP"]}, {"sub/a.XMP": None}),
    ({"a.JPG": ["A.jpg.xmp"], "Mühe.jpg": ["Mu\u0308he.xmp"]}, {"A.jpg.xmp": None, "Mu\u0308he.xmp": None}),
    ({"a.jpg": ["a.jpg.xmp"], "A.jpg": []}, {"a.jpg.xmp": None}),
    ({"a.jpg": []}, {"b.jpg.xmp": None, "sub/a.xmp": None, "b.jpg.json": "b.jpg", "c.json": "c"}),
    *(
        ({name: [beside]}, {beside: "a.jpg"})
        for name, beside in (
            ("a.jpg", f"a.jpg{MORE}.json"), ("a.jpg", "a.jpg.s.json"), ("a.jpg", "a.jpg.metadata.json"),
            ("a.jpg", "of another name.json"), ("a(1).jpg", "a.jpg(1).json"), ("a(1).jpg", f"a.jpg{MORE}(1).json"),
            ("a(1).jpg", f"a.jpg(1){MORE}.json"), ("a(1).jpg", "A.JPG(1).json"), ("a-edited.jpg", f"a.jpg{MORE}.json"),
            ("a-編集済み(1).jpg", "a.jpg(1).json"), ("a(1)-ha editado.jpg", "a.jpg.suppl(1).json"),
            ("a-.jpg", "a.jpg.json"),
        )
    ),
    ({"a(1).jpg": ["a(1).jpg.json"]}, {"a(1).jpg.json": "a(1).jpg"}),
    ({"a.jpg": ["a.json"]}, {"a.json": "a"}),
    ({"a(1).jpg": []}, {"a.jpg.json": "a.jpg"}),
    ({"a.jpg": []}, {"a.jpg(1).json": "a.jpg"}),
    ({"ab.jpg": [], "a-1.jpg": []}, {"a.jpg.json": "a.jpg"}),
    ({"a-edited.jpg": ["a.HEIC.json"], "a.HEIC": ["a.HEIC.json"]}, {"a.HEIC.json": "a.HEIC"}),
    ({"a-b-edited.jpg": ["a-b.jpg.json"], "a.jpg": ["a.jpg.json"]}, {"a-b.jpg.json": "a-b.jpg", "a.jpg.json": "a.jpg"}),
    ({"a.MP4": ["a.HEIC.json"]}, {"a.HEIC.json": "a.HEIC"}),
    ({"a.MOV": ["a.PNG.json"], "a.PNG": ["a.PNG.json"]}, {"a.PNG.json": "a.PNG"}),
    ({"a.jpg": ["a.jpg.json"], "a.png": []}, {"a.jpg.json": "a.jpg"}),
    ({"A_B_s picture_.jpg": ["x.json"]}, {"x.json": "A/B's picture?.jpg"}),
    ({f"{LONG[:47]}.jpg": [f"{LONG[:46]}.json"]}, {f"{LONG[:46]}.json": f"{LONG}.jpg"}),
    ({f"{LONG[:47]}(2).jpg": [f"{LONG[:46]}(2).json"]}, {f"{LONG[:46]}(2).json": f"{LONG}.jpg"}),
    ({f"{LONG[:44]}.jpg": [f"{LONG[:44]}.j.json"], f"{LONG[:44]}-ed.jpg": [f"{LONG[:44]}.j.json"]},
     {f"{LONG[:44]}.j.json": f"{LONG[:44]}.jpg"}),
    ({f"{LONG}a.jpg": [f"{LONG[:46]}.json"], f"{LONG}b.jpg": [f"{LONG[:46]}(1).json"]},
     {f"{LONG[:46]}.json": f"{LONG}a.jpg", f"{LONG[:46]}(1).json": f"{LONG}b.jpg"}),
    ({f"{WIDE}.jpg": [f"{WIDE[:15]}.json"]}, {f"{WIDE[:15]}.json": f"{WIDE}.jpg"}),
    ({f"{WIDE[:16]}.jpg": [f"{WIDE[:15]}.json"]}, {f"{WIDE[:15]}.json": f"{WIDE}.jpg"}),
    ({unicodedata.normalize("NFD", f"{ACCENTED[:47]}.jpg"): [f"{ACCENTED[:46]}.json"]},
     {f"{ACCENTED[:46]}.json": f"{ACCENTED}.jpg"}),
]  # fmt: skip


def test_sidecars_are_found_by_names_and_titles(tmp_path: Path) -> None:
    failures = Failures()
    for number, (files, sidecars) in enumerate(BESIDE):
        root = tmp_path / str(number)
        (root / "sub").mkdir(parents=True)
        for name, title in sidecars.items():
            (root / name).write_text(takeout(title) if title else "")
        found = Sidecars(root, sidecars, files)
        with failures.of(files, sidecars):
            assert {name: found.of(name) for name in files} == files
            assert {*found.unused()} == sidecars.keys() - {each for beside in files.values() for each in beside}
        with failures.of(files, "the title is that of the file"):
            for name, beside in files.items():
                (root / name).write_bytes(b"")
                assert read_facts(root / name, [root / each for each in beside if "json" in each]).problems == []
    assert not failures, failures


def test_json_of_other_programs_is_no_sidecar(tmp_path: Path) -> None:
    others = {"a.json": "[1]", "b.json": "{", "package.json": '{"title": "p", "size": 3}', "c.json": '{"title": "c"}'}
    others["metadata.json"] = json.dumps({"title": "Album", "geoData": {}, "date": {"timestamp": "1"}})
    for name, written in others.items():
        (tmp_path / name).write_text(written)
    found = Sidecars(tmp_path, others, ["a.jpg", "b.jpg"])
    assert found.unused() == []
    for name in ("a.jpg", "b.jpg"):
        assert facts(tmp_path, {each: others[each] for each in found.of(name)}, name=name) == FileFacts()


def facts(tmp_path: Path, sidecars: dict[str, bytes | str], content: bytes = b"", name: str = "a.jpg") -> FileFacts:
    (tmp_path / name).write_bytes(content or jpeg())
    for each, written in sidecars.items():
        (tmp_path / each).write_bytes(written if isinstance(written, bytes) else written.encode())
    return read_facts(tmp_path / name, [tmp_path / each for each in sidecars])


def test_a_sidecar_wins_and_what_differs_is_counted(tmp_path: Path) -> None:
    own = jpeg("red", exif_of("2024:06:01 12:30:00", "+02:00", place=(52.5, 13.4)), xmp_packet('xmp:Rating="2"'))
    at = 'exif:GPSLatitude="52,30N" exif:GPSLongitude="13,24E" exif:DateTimeOriginal="2024-06-01T12:30:00"'
    said = xmp_packet(f'xmp:Rating="5" {at}', bag("Iptc4xmpExt:PersonInImage", "Grandma"))
    found = facts(tmp_path, {"a.jpg.xmp": said, "a.xmp": xmp_packet('xmp:Rating="1" xmp:Label="Red"')}, own)
    assert found.header == {
        "taken": "2024-06-01T12:30:00+02:00", "latitude": 52.5, "longitude": 13.4, "rating": 5, "people": ["Grandma"],
        "color_label": "Red",
    }  # fmt: skip
    assert [*found.differing] == ["rating"]
    (line,) = sidecar_problems([found, found])
    assert "rating (2)" in line and line.endswith("a.jpg")


MOMENT = datetime.fromtimestamp(1717237800, UTC)  # 10:30
CLOCKS = [
    ("2024:06:01 12:30:00", "+02:00", "2024-06-01T12:30:00+02:00", False),
    ("2024:06:01 16:15:00", "", "2024-06-01T16:15:00", False),
    ("2024:06:01 12:41:00", "", MOMENT.astimezone().isoformat(), True),
    ("2014:06:01 12:30:00", "", MOMENT.astimezone().isoformat(), True),
    ("", "", MOMENT.astimezone().isoformat(), False),
]


def test_the_clock_of_the_place_stays_where_a_takeout_means_the_same_moment(tmp_path: Path) -> None:
    failures = Failures()
    for written, offset, taken, differs in CLOCKS:
        with failures.of(written):
            found = facts(tmp_path, {"a.jpg.json": takeout("a.jpg")}, jpeg("red", exif_of(written, offset)))
            assert (found.header["taken"], bool(found.differing)) == (taken, differs)
    assert not failures, failures


def test_what_a_takeout_says(tmp_path: Path) -> None:
    more = {
        "description": "Grüße",
        "people": [{"name": "Grandma"}, {"name": ""}, "x"],
        "geoData": {"latitude": 0.0, "longitude": 0.0},
        "geoDataExif": {"latitude": 52.5, "longitude": 13.4},
    }
    found = facts(tmp_path, {"a.jpg.json": takeout("a.jpg", **more)}).header
    del found["taken"]
    assert found == {"description": "Grüße", "people": ["Grandma"], "latitude": 52.5, "longitude": 13.4}
    strange = {"description": [], "people": 3, "geoData": {"latitude": "x"}, "photoTakenTime": []}
    assert facts(tmp_path, {"a.jpg.json": takeout("a.jpg", **strange)}) == FileFacts()
    assert facts(tmp_path, {"a.jpg.json": '{"title": "b.jpg", "size": 3}'}) == FileFacts()  # another program's
    assert facts(tmp_path, {"a.jpg.json": "[]"}) == FileFacts()


def test_an_image_without_sidecars_opens_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    monkeypatch.setattr("openvse.media.sidecars._content", lambda path: pytest.fail(str(path)))
    assert read_facts(tmp_path / "a.png") == FileFacts()
