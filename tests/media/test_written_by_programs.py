"""What other programs wrote: people, ratings and places of XMP, names of sidecars, a Takeout, and dates in names."""

import hashlib
import io
import json
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from openvse.media import headers
from openvse.media.headers import date_in_folders, date_in_name, read_xmp
from openvse.media.listing import list_media
from openvse.media.ranks import ranked_facts
from openvse.media.sidecars import FileFacts, Sidecars, read_facts, sidecar_problems
from photographs import bag, exif_of, jpeg, photoshop, read_header, xmp_of, xmp_packet
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

ALTA = """<rdf:Bag><rdf:li Iptc4xmpExt:City="Alta"><Iptc4xmpExt:CountryName>Norway</Iptc4xmpExt:CountryName></rdf:li>
</rdf:Bag>"""
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
    (xmp_packet("", '<Iptc4xmpExt:PersonInImageWDetails><rdf:Bag><rdf:li rdf:parseType="Resource">'
            '<Iptc4xmpExt:PersonName><rdf:Alt><rdf:li xml:lang="x-default">Zoe</rdf:li></rdf:Alt>'
            "</Iptc4xmpExt:PersonName></rdf:li></rdf:Bag></Iptc4xmpExt:PersonInImageWDetails>"), {"people": ["Zoe"]}),
    (xmp_packet('photoshop:Headline="Finals" photoshop:City="Bergen" photoshop:Country="Norway" '
                'Iptc4xmpCore:Location="Bryggen"', "<Iptc4xmpCore:AltTextAccessibility><rdf:Alt><rdf:li>A wharf"
                "</rdf:li></rdf:Alt></Iptc4xmpCore:AltTextAccessibility>"),
     {"headline": "Finals", "alt": "A wharf", "place": ["Bryggen", "Bergen", "Norway"]}),
    (xmp_packet("", f"<Iptc4xmpExt:LocationCreated>{ALTA}</Iptc4xmpExt:LocationCreated>"),
     {"place": ["Alta", "Norway"]}),
    (xmp_packet("", f"<Iptc4xmpExt:LocationShown>{ALTA}{ALTA}</Iptc4xmpExt:LocationShown>" + ALTA.replace("Alta", "x")),
     {"place": ["Alta", "Norway"]}),
    (xmp_packet('MicrosoftPhoto:Rating="75"'), {"rating": 4}),
    (xmp_packet('MicrosoftPhoto:Rating="75"').replace(b"photo/1.0/", b"photo/1.0"), {"rating": 4}),
    (xmp_packet('MicrosoftPhoto:Rating="99" xmp:Rating="2"'), {"rating": 2}),
    (xmp_packet('MicrosoftPhoto:Rating="0"'), {}),
    (xmp_packet("", bag("darktable:colorlabels", "2")), {"color_label": "Green"}),
    (xmp_packet("", bag("darktable:colorlabels", "0", "4", "9")), {"color_label": ["Red", "Purple"]}),
    (xmp_packet('xmp:Label="Blue"', bag("darktable:colorlabels", "0")), {"color_label": "Blue"}),
    (xmp_packet().decode().encode("utf-16"), {}),
    (b"", {}),
]  # fmt: skip


def test_what_xmp_says(failures: Failures) -> None:
    for content, said in XMP:
        with failures.of(said):
            assert ranked_facts([read_xmp(content)]) == said


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


FOLDERS = {  # paths below an indexed folder that date a photograph, and those whose digits are something else
    "2023/10/11/a": "2023-10-11", "photos/2023/10/a": "2023-10", "2023/a": "2023",
    "2023/2023-10-11 Trip/a": "2023-10-11",
    "2023/10/11/raw/a": "2023-10-11", "20231011 Birthday/a": "2023-10-11", "2023_10_11_party/a": "2023-10-11",
    "2023-10/a": "2023-10", "1985.07/a": "1985-07", "1985-07 Italy": "1985-07", "1985-07-03 Italy": "1985-07-03",
    "Photos from 2002/a": "2002", "Fotos von 2002/a": "2002", "Foto's uit 2002/a": "2002", "Фото за 2002/a": "2002",
    "2002/1985-07 Italy": "1985-07", "2023/13/a": "2023", "1985-07/IMG_1": "1985-07",
    **dict.fromkeys("""a|1920/a|1920x1080/a|1920-1080/a|2048/a|2000 dogs/a|2000px/a|20191231/a|20191231|2020|1985
        iPhone 2020/a|Galaxy J7 2016/a|Galaxy Note 2014/a|Moto G 2015/a|Huawei P smart 2019/a|Nokia 2010/a|Nexus 2013/a
        iPad Pro 2021/a|Pixel 2023/a|Xperia 2011/a|100CANON/a|101_2015/a|IMG_2041|DSC02020|P1020304|2023-13/a|2099/a
        19850/a|201/a|202310/a|2023-1/a|2023-10_11/a|v2023-10/a|2023.10.1/a|1985-07-|part 2020/a|2020 - 2021/a
        2020-2021/a|2010-11|+49 1985 07/a
        resized-2000/a|Office 2007/a|3008x2000/a|2000s/a""".replace("\n", "|").split("|")),
}  # fmt: skip


def test_dates_of_folders(tmp_path: Path, failures: Failures) -> None:
    for path, date in FOLDERS.items():
        with failures.of(path):
            assert date_in_folders(path.strip().split("/")) == date
    photo = tmp_path / "2002" / "06" / "a.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(jpeg())
    assert [read_facts(photo, (), folders).header for folders in (0, 1, 2)] == [{}, {}, {"taken": "2002-06"}]
    named = photo.rename(photo.with_name("IMG-20030101-WA0001.jpg"))
    assert read_facts(named, (), 2).header == {"taken": "2003-01-01"}


def test_what_windows_and_iptc_say(tmp_path: Path) -> None:
    exif = exif_of()
    exif[0x4746], exif[0x4749], exif[0x9C9B] = 4, 75, "Grüße".encode("utf-16-le") + b"\0\0"
    exif[0x9C9C], exif[0x9C9E] = "Am Meer".encode("utf-16-le"), "Hund; Strand;;".encode("utf-16-le")
    said = {"rating": 4, "title": "Grüße", "description": "Am Meer", "keywords": ["Hund", "Strand"]}
    assert facts(tmp_path, {}, jpeg("red", exif)).header == said
    exif[0x4746] = 0
    assert facts(tmp_path, {}, jpeg("red", exif)).header == said
    exif[0x4749] = 0
    rated = jpeg("red", exif, xmp_packet('xmp:Rating="1"'), {105: [b"News"], 101: [b"Norway"], 90: [b"Bergen"]})
    found = facts(tmp_path, {}, rated).header
    assert found == {**said, "rating": 1, "headline": "News", "place": ["Bergen", "Norway"]}


PICASA = """[a.JPG]
star=yes
caption=Am Meer
keywords=sea,,sun
faces=rect64(3f845bcb59418507),8e62;rect64(9eb15e89b6b584c1),ffffffffffffffff
albums=.album:1f,.album:none
[.album:1f]
name=Norway
[Contacts2]
8e62=Grandma;;
[broken
"""


def test_picasa_and_albums_describe_the_files_of_a_folder(tmp_path: Path) -> None:
    album = json.dumps({"title": "Trip", "date": {"timestamp": "1"}, "access": "protected"})
    for name, written in (
        (".picasa.ini", PICASA), ("metadata.json", album), ("Metadaten(1).json", album),
        ("sub/metadata.json", album.replace("Trip", "Photos from 2002")), ("sub/a.xmp", ""), ("a.jpg", ""),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(written.encode())
    listing = list_media(tmp_path)
    found = Sidecars(tmp_path, listing.sidecars, [*listing.names, "sub/a.jpg"])
    assert (found.of("sub/a.jpg"), found.unused()) == (["sub/a.xmp"], [])
    assert found.of("a.jpg") == [".picasa.ini", "Metadaten(1).json", "metadata.json"]
    (tmp_path / "a.jpg").write_bytes(jpeg())
    said = {
        "description": "Am Meer",
        "keywords": ["sea", "sun"],
        "tags": ["Norway"],
        "people": ["Grandma"],
        "rating": 5,
    }
    beside = [tmp_path / each for each in found.of("a.jpg")]
    assert read_facts(tmp_path / "a.jpg", beside).header == said
    assert read_facts(tmp_path / "b.jpg", beside).header == {"tags": ["Trip"]}


def test_dates_in_names(tmp_path: Path, failures: Failures) -> None:
    for name, date in NAMES:
        with failures.of(name):
            assert date_in_name(name) == date
    (tmp_path / NAMES[0][0]).write_bytes(jpeg())
    assert read_header(tmp_path / NAMES[0][0]) == {"taken": "2020-01-01"}
    (tmp_path / NAMES[0][0]).write_bytes(jpeg("red", exif_of("2019:06:01 10:00:00")))
    assert read_header(tmp_path / NAMES[0][0]) == {"taken": "2019-06-01T10:00:00"}
    (tmp_path / NAMES[0][0]).write_bytes(jpeg("red", exif_of("in summer 1975")))
    assert read_header(tmp_path / NAMES[0][0]) == {}


@pytest.mark.parametrize("title", ["iptc", "xmp"])
def test_iptc_comes_first_only_if_its_digest_says_so(tmp_path: Path, title: str) -> None:
    """A program that writes both notes a digest of IPTC; another one has changed IPTC alone."""
    data = b"\x1c\x02\x05\0\x04iptc"
    digest, file = hashlib.md5(b"before" if title == "iptc" else data).digest(), tmp_path / "a.tif"
    told = {33723: data, 34377: photoshop({}, digest=digest), 700: xmp_of("xmp")}
    Image.new("RGB", (8, 8)).save(file, tiffinfo=told)
    assert read_header(file) == {"title": title}
    assert facts(tmp_path, {}, jpeg("red", None, xmp_of("xmp"), {5: [b"iptc"]}, digest=digest)).header == {
        "title": title
    }


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
    ({"a.MP": ["a.MP.jpg.json"], "a.MP~2": ["b.json"]}, {"a.MP.jpg.json": "a.MP.jpg", "b.json": "a.MP~2.jpg"}),
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


def test_sidecars_are_found_by_names_and_titles(tmp_path: Path, failures: Failures) -> None:
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


def test_json_of_other_programs_is_no_sidecar(tmp_path: Path) -> None:
    others = {"a.json": "[1]", "b.json": "{", "package.json": '{"title": "p", "size": 3}', "c.json": '{"title": "c"}'}
    others["metadata.json"] = json.dumps({"title": "p", "version": {"size": 3}})
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


def test_the_clock_of_the_place_stays_where_a_takeout_means_the_same_moment(tmp_path: Path, failures: Failures) -> None:
    for written, offset, taken, differs in CLOCKS:
        with failures.of(written):
            found = facts(tmp_path, {"a.jpg.json": takeout("a.jpg")}, jpeg("red", exif_of(written, offset)))
            assert (found.header["taken"], bool(found.differing)) == (taken, differs)


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


class Gazetteer:
    """Knows a town at 60.39, 5.32."""

    def query(self, coordinates: list[tuple[float, float]]) -> list[dict[str, object]]:
        town = {"city": "Bergen", "state": "Vestland", "country": "Norway", "latitude": 60.39, "longitude": 5.32}
        return [town for _ in coordinates]


def test_coordinates_have_names_if_nothing_else_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = (jpeg("red", exif_of(place=at)) for at in ((60.4, 5.3), (58.0, 5.3)))
    assert "place" not in facts(tmp_path, {}, near).header or headers._gazetteer() is not None
    monkeypatch.setattr(headers, "_gazetteer", Gazetteer)
    assert facts(tmp_path, {}, near).header["place"] == ["Bergen", "Vestland", "Norway"]
    assert "place" not in facts(tmp_path, {}, far).header
    named = xmp_packet('photoshop:City="Bergenhus"')
    assert facts(tmp_path, {"a.jpg.xmp": named}, near).header["place"] == ["Bergenhus"]
    assert facts(tmp_path, {}, jpeg()).header == {}


def test_the_package_names_places(tmp_path: Path) -> None:
    pytest.importorskip("reverse_geocode")
    places = {"Norway": (60.3913, 5.3221), "Switzerland": (47.5596, 7.5886), "Japan": (35.68, 139.76)}
    for country, at in places.items():
        found = facts(tmp_path, {}, jpeg("red", exif_of(place=at))).header["place"]
        assert isinstance(found, list) and found[-1] == country
