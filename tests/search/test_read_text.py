"""Text that is read in images: found by its words, kept and followed by the index, read in a second pass."""

import json
import logging
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw, ImageFont

from colour_model import COLOURS, ColourModel, paint
from openvse.errors import DataError
from openvse.indexing import Index
from openvse.indexing.database import READER, Database
from openvse.indexing.manifest import read_manifest
from openvse.indexing.readings import TextReport
from openvse.media.text_reading import (
    LEAST_CONFIDENCE,
    MOST_LENGTH,
    MOST_LINES,
    MOST_PIECES,
    OVERLAP_PX,
    PIECE_PX,
    WHOLE_PX,
    RapidReader,
    TextLine,
    _joined,
    as_read,
    pieces_of,
    shown_lines,
    stored_lines,
)
from openvse.search import Hit, Page, SearchEngine
from openvse.search.exact import WordHits
from openvse.search.hits import REACH, beside_each_other
from openvse.search.updating import IndexSettings, IndexUpdate, index
from openvse.types import EmbeddingSet

BOX = ((0.1, 0.2), (0.5, 0.2), (0.5, 0.3), (0.1, 0.3))
TEXTS = {
    "red": ("Invoice 2024-117", "Total 12,50 EUR"),
    "green": ("REWE Markt", "Kopfsteinpflaster"),
    "blue": (),
    "white": ("modem", "lnvoice 99", "Ting Vit đưng ph"),
}


@dataclass
class FakeReader:
    """Reads what ``texts`` says of the nearest colour, and notes which colours it read."""

    texts: dict[str, Sequence[str]] = field(default_factory=lambda: dict(TEXTS))
    name: str = "fake"
    read_colours: list[str] = field(default_factory=list)
    fails: str = ""

    def read(self, image: Image.Image) -> list[TextLine]:
        mean = np.asarray(image, float).mean((0, 1))
        colour = min(COLOURS, key=lambda each: float(np.abs(mean - COLOURS[each]).sum()))
        self.read_colours.append(colour)
        if colour == self.fails:
            raise RuntimeError("the model choked")
        return [TextLine(text, 0.99 - 0.01 * row, BOX) for row, text in enumerate(self.texts[colour])]


class Painter(ColourModel):
    """Embeds any sentence as blue."""

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
        return super().encode_text(["blue"] * len(captions), batch_size)


@pytest.fixture
def model() -> Painter:
    return Painter()


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


@pytest.fixture
def out(model: Painter, reader: FakeReader, photos: Path, tmp_path: Path) -> Path:
    """An index of the photos whose text was read."""
    update(model, photos, tmp_path / "index", reader)
    return tmp_path / "index"


def update(model: Painter, photos: Path, out: Path, reader: FakeReader | str | None) -> IndexUpdate:
    return index(model, photos, out, IndexSettings(read_text=reader))


def found(model: Painter, out: Path, query: str, page: Page | None = None) -> list[Hit]:
    with SearchEngine(model, Index.open(out)) as engine:
        return engine.answer(query, page)[0].hits


def names(hits: Sequence[Hit]) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.parametrize(
    ("query", "first", "lines"),
    [
        ("kopfsteinpflaster", "green.png", ["Kopfsteinpflaster"]),
        ("2024-117", "red.png", ["Invoice 2024-117"]),
        ("invoice total", "red.png", ["Invoice 2024-117", "Total 12,50 EUR"]),
        ("the modem", "deeper/white.png", ["modem"]),
        ("Tiếng VIỆT", "deeper/white.png", ["Ting Vit đưng ph"]),
        ("đường phố", "deeper/white.png", ["Ting Vit đưng ph"]),
        ("tieng viet", "deeper/white.png", ["Ting Vit đưng ph"]),
    ],
)
def test_a_word_that_was_read_finds_its_image(
    model: Painter, out: Path, query: str, first: str, lines: list[str]
) -> None:
    hit = found(model, out, query)[0]
    assert (hit.id, [line.text for line in hit.text]) == (first, lines)
    assert hit.matched and hit.by in ("words", "both")
    assert hit.to_json()["text"][0]["box"] == [list(corner) for corner in BOX]


@pytest.mark.parametrize(("query", "first"), [("invoice", "red.png"), ("lnvoice", "deeper/white.png")])
def test_what_is_read_exactly_comes_alone(model: Painter, out: Path, query: str, first: str) -> None:
    assert names(found(model, out, query, Page(only="words"))) == [first]


@pytest.mark.parametrize("query", ["Kopfsteinpf1aster", "kopfsteinpflastar", "opfsteinpflaster"])
def test_a_misread_word_is_found_where_nothing_is_exact(model: Painter, out: Path, query: str) -> None:
    expected = [] if "1" in query else ["green.png"]
    assert names(found(model, out, query, Page(only="words"))) == expected
    assert names(found(model, out, f"{query} somewhere over it", Page(only="words"))) == []


def test_conditions_on_the_text(model: Painter, out: Path) -> None:
    def fulfil(condition: str) -> set[str]:
        return set(names(found(model, out, "anything", Page(where=(condition,)))))

    assert fulfil("text ~ invoice*") == {"red.png"}
    assert fulfil("text contains nvoice") == {"red.png", "deeper/white.png"}
    assert fulfil("text = rewe markt") == {"green.png"}
    assert fulfil("text != rewe markt") == {"red.png", "blue.png", "deeper/white.png"}


def test_a_condition_on_text_that_nobody_read_warns(model: Painter, photos: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "index")
    with SearchEngine(model, Index.open(tmp_path / "index")) as engine:
        answer = engine.answer("a", Page(where=("text contains a",)))[0]
    assert answer.hits == [] and len(answer.warnings) == 1


def test_the_text_follows_changes(model: Painter, reader: FakeReader, photos: Path, out: Path) -> None:
    assert sorted(reader.read_colours) == ["blue", "green", "red", "white"]
    reader.read_colours.clear()
    (photos / "red.png").rename(photos / "moved.png")
    shutil.copy(photos / "green.png", photos / "copy.png")
    paint(photos / "green.png", "white")
    # A folder that is empty keeps its items.
    (photos / "deeper" / "white.png").rename(photos / "deeper" / "white.txt")
    report = update(model, photos, out, reader).text
    assert report is not None and (report.read, report.with_text) == (1, 3)
    assert reader.read_colours == ["white"]
    assert names(found(model, out, "invoice", Page(only="words"))) == ["moved.png"]
    assert names(found(model, out, "kopfsteinpflaster", Page(only="words"))) == ["copy.png"]
    assert names(found(model, out, "modem", Page(only="words"))) == ["green.png"]
    with Database(out / read_manifest(out).items, write=True) as database:
        assert database.sound()
        database.read("INSERT INTO texts (texts) VALUES ('integrity-check')")


def test_another_reader_reads_again_and_none_forgets(model: Painter, photos: Path, out: Path) -> None:
    report = update(model, photos, out, FakeReader({colour: ["other"] for colour in COLOURS}, name="other")).text
    assert report is not None and (report.read, report.with_text) == (4, 4)
    assert names(found(model, out, "invoice", Page(only="words"))) == []
    assert update(model, photos, out, "none").text is None
    assert update(model, photos, out, None).text is None
    assert names(found(model, out, "other", Page(only="words"))) == []
    with Database(out / read_manifest(out).items) as database:
        assert database.setting(READER) == "" and not database.has("readings")


def test_an_index_remembers_that_it_reads(
    model: Painter, photos: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that is not there is no reason to stop; the images are left."""
    shutil.copy(photos / "red.png", photos / "new.png")
    with caplog.at_level(logging.WARNING):
        report = update(model, photos, out, None).text
    assert report is None and len(caplog.records) == 1
    assert names(found(model, out, "invoice", Page(only="words"))) == ["new.png", "red.png"]
    with pytest.raises(DataError):
        update(model, photos, out, "tesseract")


def test_an_index_of_another_model_goes_on_reading(photos: Path, out: Path, reader: FakeReader) -> None:
    other = Painter(fingerprint="colours-2")
    index(other, photos, out, overwrite=True)
    with Database(out / read_manifest(out).items) as database:
        assert database.setting(READER) == "fake"
    assert update(other, photos, out, reader).text == TextReport("fake", 4, 3)


def test_an_image_whose_reading_fails_is_indexed_and_named(model: Painter, photos: Path, tmp_path: Path) -> None:
    reader = FakeReader(fails="red")
    done = update(model, photos, tmp_path / "index", reader)
    assert done.text is not None and done.items.count == 4
    assert [path for path, _ in done.text.failed] == [photos / "red.png"]
    assert names(found(model, tmp_path / "index", "modem"))[0] == "deeper/white.png"
    again = update(model, photos, tmp_path / "index", reader).text
    assert again is not None and (again.read, again.failed) == (0, [])


def save_fax(path: Path, *pages: str, also: Sequence[int] = ()) -> None:
    """Write a TIFF of a page of each colour. The pages ``also`` are smaller copies of others."""
    images = [Image.new("RGB", (32, 32), COLOURS[colour]) for colour in pages]
    for place in also:
        images[place].encoderinfo = {"tiffinfo": {254: 1}}
    images[0].save(path, save_all=True, append_images=images[1:])


def test_every_page_is_read_and_named(
    model: Painter, photos: Path, out: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(reader: FakeReader) -> list[str]:
        caplog.clear()
        update(model, photos, out, reader)
        return [message.partition(str(photos))[2] or message for message in caplog.messages]

    save_fax(photos / "fax.tif", "red", "white", "green", also=[1])
    save_fax(photos / "page.tif", "red")
    frames = [Image.new("RGB", (32, 32), COLOURS[colour]) for colour in ("blue", "red")]
    frames[0].save(photos / "moving.gif", save_all=True, append_images=frames[1:])
    assert read(FakeReader()) == ["1 file(s) have more frames: only the text of the first is read"]
    said = {hit.id: hit.text for hit in found(model, out, "invoice kopfsteinpflaster", Page(only="words"))}
    assert {name: shown_lines(lines) for name, lines in said.items()} == {
        "fax.tif": "page 1: Invoice 2024-117 … page 2: Kopfsteinpflaster",
        **{"page.tif": "Invoice 2024-117", "red.png": "Invoice 2024-117", "green.png": "Kopfsteinpflaster"},
    }
    assert [line.to_json()["page"] for line in said["fax.tif"]] == [1, 2]
    monkeypatch.setattr("openvse.indexing.readings.MOST_OF_FILE", 2)
    save_fax(photos / "fax.tif", "red", "green", "green")
    part = "/fax.tif: its text is read in part: "
    assert read(FakeReader()) == [f"{part}only its pages 1 to 2, as there are many or large ones"]
    save_fax(photos / "fax.tif", "red", "green")
    assert read(FakeReader(fails="green")) == [f"{part}without page 2: the model choked"]
    whole = (photos / "fax.tif").read_bytes()
    for cut, reason in (
        (3000, "without page 2: an image of mode RGB: it is tr"),
        (3200, "only its pages 1 to 1: Missing"),
    ):
        (photos / "fax.tif").write_bytes(whole[:-cut])
        assert read(FakeReader())[0].startswith(part + reason)


def line_at(left: float, top: float, text: str, *, is_upright: bool = True) -> TextLine:
    corners = [(left, top), (left + 0.4, top), (left + 0.4, top + 0.02), (left, top + 0.02)]
    return TextLine(text, 0.9, tuple((x, y) if is_upright else (1 - y, x) for x, y in corners))


@pytest.mark.parametrize("is_upright", [True, False])
def test_a_word_that_a_hyphen_breaks_is_joined(is_upright: bool) -> None:
    """Within its column, to the next line; with a line that begins with a number, and at the end, it is none."""
    columns = ["the gar-", "den and fen-", "ces 2024-", "cost a lot -", "no-"], ["one-", "two", "3 apples", "six-"]
    lines = [
        line_at(0.5 * column, 0.1 + 0.03 * row, text, is_upright=is_upright)
        for column, texts in enumerate(columns)
        for row, text in enumerate(texts)
    ]
    rows = json.loads(stored_lines(sorted(lines, key=lambda line: line.box[0][1])))
    assert {row[0]: row[4] for row in rows if row[4:]} == {
        "the gar-": "garden gar-den",
        "den and fen-": "garden gar-den fences fen-ces",
        "ces 2024-": "fences fen-ces",
        **{"one-": "onetwo one-two", "two": "onetwo one-two"},
    }


def test_an_index_of_before_reads_the_other_pages_and_joins_words(model: Painter, photos: Path, tmp_path: Path) -> None:
    class Columns(FakeReader):
        def read(self, image: Image.Image) -> list[TextLine]:
            return [line_at(0.1, 0.1 + 0.03 * row, line.text) for row, line in enumerate(super().read(image))]

    reader, out = Columns({**dict.fromkeys(COLOURS, ()), "red": ["Kopfstein-", "pflaster liegt"]}), tmp_path / "index"
    save_fax(photos / "fax.TIF", "blue", "red")
    update(model, photos, out, reader)
    with Database(out / read_manifest(out).items, write=True) as database:  # as it was
        for key, lines in database.read("SELECT key, lines FROM readings WHERE lines != '[]'"):
            old = json.dumps([row[:3] for row in json.loads(lines) if len(row) < 4 or row[3] != 2])
            database.change("DELETE FROM readings WHERE key = ?", values=(key,))
            database.change("INSERT INTO readings VALUES (?, ?)", values=(key, old))
        database.set("read_pages", "")
    assert names(found(model, out, "kopfsteinpflaster", Page(only="words"))) == []
    reader.read_colours.clear()
    update(model, photos, out, reader)
    assert reader.read_colours == ["blue", "red"]
    for query in ("kopfsteinpflaster", "kopfstein-pflaster", "kopfstein", "pflaster"):
        assert set(names(found(model, out, query, Page(only="words")))) == {"fax.TIF", "red.png"}
    hits = found(model, out, "anything", Page(where=("text contains steinpfl", "kind = image")))
    assert set(names(hits)) == {"fax.TIF", "red.png"}
    with Database(out / read_manifest(out).items, write=True) as database:
        database.read("INSERT INTO texts (texts) VALUES ('integrity-check')")


def test_a_stop_goes_on_and_a_search_works_before_it_is_done(model: Painter, photos: Path, tmp_path: Path) -> None:
    class Stopping(FakeReader):
        def read(self, image: Image.Image) -> list[TextLine]:
            if len(self.read_colours) == 2:
                raise KeyboardInterrupt
            return super().read(image)

    with pytest.raises(KeyboardInterrupt):
        update(model, photos, tmp_path / "index", Stopping())
    assert len(found(model, tmp_path / "index", "a")) == 4
    report = update(model, photos, tmp_path / "index", FakeReader()).text
    assert report is not None and (report.read, report.with_text) == (2, 3)


def test_what_is_not_sure_or_too_much_is_left_out(model: Painter, photos: Path, tmp_path: Path) -> None:
    class Doubting(FakeReader):
        def read(self, image: Image.Image) -> list[TextLine]:
            lines = [TextLine(f"line{number}", 1.0, BOX) for number in range(100 * MOST_LINES)]
            return [
                TextLine("doubtful", LEAST_CONFIDENCE - 0.01, BOX),
                TextLine("-- •", 1.0, BOX),
                TextLine("金", 1.0, BOX),
                *lines,
            ]

    for name in ("deeper/white.png", "green.png", "blue.png"):
        (photos / name).unlink()
    update(model, photos, tmp_path / "index", Doubting())
    with Database(tmp_path / "index" / read_manifest(tmp_path / "index").items) as database:
        for (lines,) in database.read("SELECT lines FROM readings"):
            kept = [text for text, *_ in json.loads(str(lines))]
            assert len(kept) == MOST_LINES and kept[0] == "line0"


def test_a_long_text_does_not_win_by_its_length() -> None:
    """Both texts have both words; in the long one they are far from each other."""
    forms = {"milk": [["milk"]], "bread": [["bread"]]}
    hits = WordHits.of({"milk": np.array([0, 1, 2]), "bread": np.array([0, 1])}, 100, 3)
    far = "\n".join([" milk ", *[" word other "] * REACH, " bread "])
    order = beside_each_other(hits, {0: far, 1: " milk \n bread "}, forms)
    assert order.positions.tolist() == [1, 0, 2]
    assert order.shares[0] == 1 > order.shares[1] == pytest.approx(max(hits.weights), abs=1e-6)


def test_words_that_no_text_has_weigh(model: Painter, out: Path) -> None:
    """A word of a sentence on a sign is no reason to come before what looks like the sentence."""
    assert found(model, out, "people wait at a crossing beside the markt")[0].id == "blue.png"


LARGE = [(1080, 12_000), (9000, 900), (6000, 4000), (3000, 2000), (2501, 30), (7, 9000), (2600, 2600)]


@pytest.mark.parametrize("size", LARGE)
def test_pieces_cover_a_picture_and_overlap(size: tuple[int, int]) -> None:
    pieces = pieces_of(*size)
    assert 1 < len(pieces) <= MOST_PIECES
    assert all(max(right - left, bottom - top) <= PIECE_PX for left, top, right, bottom in pieces)
    for axis, side in enumerate(size):
        spans = sorted({(piece[axis], piece[axis + 2]) for piece in pieces})
        assert (spans[0][0], spans[-1][1]) == (0, side)
        assert all(end - start >= OVERLAP_PX - 1 for (_, end), (start, _) in pairwise(spans))
    assert pieces_of(WHOLE_PX, 10) == [(0, 0, WHOLE_PX, 10)]


Box = tuple[float, float, float, float]
LINES: list[tuple[list[list[Box]], list[Box]]] = [
    ([[(100, 500, 1000, 540)], [(840, 500, 1940, 540)], [(1780, 501, 2500, 540)]], [(100, 500, 2500, 540)]),
    ([[(100, 500, 400, 540)], [(102, 501, 401, 541)]], [(100, 500, 401, 541)]),
    ([[(100, 980, 900, 1000)], [(100, 980, 900, 1020)]], [(100, 980, 900, 1020)]),  # half of it, and all
    ([[(100, 500, 1000, 540), (100, 536, 990, 576)], [(840, 500, 1500, 540)]],
     [(100, 500, 1500, 540), (100, 536, 990, 576)]),  # the line below is another
    ([[(100, 500, 1000, 540)], [(850, 500, 930, 540), (940, 500, 1200, 540)]], [(100, 500, 1200, 540)]),
    ([[(100, 500, 300, 540)], [(310, 500, 500, 540)]], [(100, 500, 300, 540), (310, 500, 500, 540)]),
]  # fmt: skip
"""The boxes of each piece, and the lines."""


@pytest.mark.parametrize(("pieces", "lines"), LINES)
@pytest.mark.parametrize("turned", [0.0, 0.1])
def test_a_line_in_several_pieces_is_one(pieces: list[list[Box]], lines: list[Box], turned: float) -> None:
    turn = np.array([[np.cos(turned), np.sin(turned)], [-np.sin(turned), np.cos(turned)]])

    def corners(box: Box) -> np.ndarray:
        left, top, right, bottom = box
        at = [[left, top], [right, top], [right, bottom], [left, bottom]]
        return np.array(at @ turn + 300 * turned, np.float32)

    joined = _joined([np.array([corners(box) for box in piece]) for piece in pieces])
    assert len(joined) == len(lines)
    for found, expected in zip(sorted(joined, key=np.sum), sorted(map(corners, lines), key=np.sum), strict=True):
        assert np.abs(found - expected).max() < 3


def letters_of(model: str) -> set[str]:
    """Return the letters that a model of the reader knows."""
    import rapidocr

    loaded = onnx.load(Path(rapidocr.__file__).parent / "models" / model, load_external_data=False)
    return {*next(each.value for each in loaded.metadata_props if each.key == "character").split("\n")}


@pytest.mark.medium
def test_the_letters_that_are_not_read_are_those_that_the_model_lacks() -> None:
    known = letters_of("PP-OCRv6_rec_small.onnx")
    latin = [chr(code) for code in (*range(0x41, 0x250), *range(0x1E00, 0x1F00))]
    greek = [chr(code) for code in (*range(0x384, 0x3CF), *range(0x1F00, 0x2000))]
    letters = [each for each in (*latin, *greek) if each.isalpha() and unicodedata.is_normalized("NFC", each)]
    assert {each for each in letters if each not in known} == {each for each in letters if not as_read(each)}
    page = (Path(__file__).parents[2] / "docs" / "ranking.md").read_text()
    table = page.partition("| language |")[2].partition("\n\n")[0]
    said = dict(re.findall(r"^\| ([A-Z][^|]*) \| ([^|]*) \|$", table, re.M))
    assert {"Vietnamese", "Greek", "Welsh"} <= {*said}
    for language, letters in said.items():
        for letter in letters.split():
            assert letter not in known and letter.upper() not in known - {"Ạ"}, (language, letter)
    for script in ("CYRILLIC", "ARABIC", "HEBREW", "HANGUL", "THAI", "DEVANAGARI"):
        assert not [each for each in known if len(each) == 1 and unicodedata.name(each, "").startswith(script)]


def test_much_is_read_in_part_and_named(
    model: Painter, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines beyond a length, and a picture of more pieces than are read: each is named, and the rest is read."""
    seen: list[tuple[int, int]] = []

    def boxes(_: RapidReader, pixels: np.ndarray, *, is_piece: bool = False) -> np.ndarray:
        seen.append(pixels.shape[:2])
        rows = [[[0, 20 * row], [2000, 20 * row], [2000, 20 * row + 4], [0, 20 * row + 4]] for row in range(50)]
        return np.array(rows, np.float32)

    monkeypatch.setattr(RapidReader, "_boxes", boxes)
    monkeypatch.setattr(
        RapidReader, "_lines", lambda _, __, boxes: [TextLine(f"line {row}", 1.0, BOX) for row in range(len(boxes))]
    )
    reader = RapidReader()
    assert len(reader.read(Image.new("RGB", (2000, 1000)))) == MOST_LENGTH // 500 < 50 and "20" in reader.note
    monkeypatch.setattr("openvse.media.text_reading.MOST_LENGTH", 10**9)
    Image.new("RGB", (300, 120_000)).save(photos / "strip.png")
    with caplog.at_level(logging.WARNING):
        update(model, photos, tmp_path / "index", reader)
    assert [record.args[0] for record in caplog.records] == [str(photos / "strip.png")]  # type: ignore[index]
    assert "300 x 120000" in caplog.text and max(map(max, seen)) < 120_000 and len(seen) < MOST_PIECES + 10


@pytest.mark.slow
def test_a_picture_within_the_bound_is_read_as_by_the_library() -> None:
    image, reader = Image.new("RGB", (900, 300), "white"), RapidReader(threads=1)
    for row in range(3):
        ImageDraw.Draw(image).text((20, 80 * row + 10), f"Invoice {row} total", "black", ImageFont.load_default(36))
    lines = reader.read(image)
    pixels = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
    found = reader._engine(pixels, use_det=True, use_cls=True, use_rec=True)
    boxes = (np.asarray(found.boxes, float) / image.size).round(4).tolist()
    assert [[*map(list, line.box)] for line in lines] == boxes
    assert [line.text for line in lines] == [*found.txts]
    assert [line.confidence for line in lines] == [round(float(score), 3) for score in found.scores]


@pytest.mark.slow
def test_small_print_of_a_large_picture_is_read_once() -> None:
    image, reader = Image.new("RGB", (2600, 160), "white"), RapidReader(threads=1)
    sentence = "alder birch cedar dogwood elm fir ginkgo hazel ironwood juniper katsura larch maple nutmeg oak poplar"
    ImageDraw.Draw(image).text((40, 60), sentence, "black", ImageFont.load_default(36))
    (line,) = reader.read(image)
    assert line.text.split() == sentence.split() and line.confidence > LEAST_CONFIDENCE
    assert (line.box[0][0], line.box[2][0]) == pytest.approx((0.013, 0.67), abs=0.05)


def test_thin_pictures_are_not_enlarged_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def engine(pixels: np.ndarray, **_: object) -> SimpleNamespace:
        seen.append(pixels.shape[:2])
        return SimpleNamespace(boxes=None)

    monkeypatch.setattr(RapidReader, "_engine", property(lambda _: engine))
    for size in ((1, 2000), (2000, 1), (1, 4000)):
        assert RapidReader().read(Image.new("RGB", size)) == []
    assert len(seen) > 3 and all(height <= 8 * width and height >= 30 for height, width in seen)
