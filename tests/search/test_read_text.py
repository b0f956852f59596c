"""Text that is read in images: found by its words, kept and followed by the index, read in a second pass."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from colour_model import COLOURS, ColourModel, paint
from openvse.errors import DataError
from openvse.indexing import Index
from openvse.indexing.database import READER, Database
from openvse.indexing.manifest import read_manifest
from openvse.indexing.readings import TextReport
from openvse.media.text_reading import LEAST_CONFIDENCE, MOST_LINES, RapidReader, TextLine
from openvse.search import Hit, Page, SearchEngine
from openvse.search.rank_fusion import WordHits
from openvse.search.text_hits import REACH, beside_each_other
from openvse.search.updating import IndexSettings, IndexUpdate, index
from openvse.types import EmbeddingSet

BOX = ((0.1, 0.2), (0.5, 0.2), (0.5, 0.3), (0.1, 0.3))
TEXTS = {
    "red": ("Invoice 2024-117", "Total 12,50 EUR"),
    "green": ("REWE Markt", "Kopfsteinpflaster"),
    "blue": (),
    "white": ("modem", "lnvoice 99"),
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


def update(
    model: Painter, photos: Path, out: Path, reader: FakeReader | str | None, **more: float
) -> IndexUpdate:
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
    (photos / "deeper" / "white.png").unlink()
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
    other = FakeReader({colour: ["other"] for colour in COLOURS}, name="other")
    report = update(model, photos, out, other).text
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


def test_an_image_whose_reading_fails_is_indexed_and_named(
    model: Painter, photos: Path, tmp_path: Path
) -> None:
    reader = FakeReader(fails="red")
    done = update(model, photos, tmp_path / "index", reader)
    assert done.text is not None and done.items.count == 4
    assert [path for path, _ in done.text.failed] == [photos / "red.png"]
    assert names(found(model, tmp_path / "index", "modem"))[0] == "deeper/white.png"
    again = update(model, photos, tmp_path / "index", reader).text
    assert again is not None and (again.read, again.failed) == (0, [])


def test_files_of_which_only_page_1_is_read_are_counted(
    model: Painter, reader: FakeReader, photos: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cover = Image.new("RGB", (32, 32), COLOURS["red"])
    cover.save(photos / "fax.tif", save_all=True, append_images=[Image.new("RGB", (32, 32))])
    cover.save(photos / "page.tif")
    for lines in (["1 file(s) have more pages: only the text of page 1 is read"], []):
        caplog.clear()
        update(model, photos, out, reader)
        assert [line for line in caplog.messages if "page" in line] == lines


def test_a_stop_goes_on_and_a_search_works_before_it_is_done(
    model: Painter, photos: Path, tmp_path: Path
) -> None:
    class Stopping(FakeReader):
        def read(self, image: Image.Image) -> list[TextLine]:
            if len(self.read_colours) == 2:
                raise KeyboardInterrupt
            return super().read(image)

    with pytest.raises(KeyboardInterrupt):
        update(model, photos, tmp_path / "index", Stopping())
    assert len(found(model, tmp_path / "index", "a")) == 4
    reader = FakeReader()
    report = update(model, photos, tmp_path / "index", reader).text
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


@pytest.mark.slow
def test_rapidocr_reads_a_line() -> None:
    image = Image.new("RGB", (400, 100), "white")
    font = ImageFont.load_default(36)
    ImageDraw.Draw(image).text((20, 25), "Invoice 2024", "black", font)
    lines = RapidReader(threads=1).read(image)
    assert " ".join(line.text for line in lines).split() == ["Invoice", "2024"]
    assert all(line.confidence > LEAST_CONFIDENCE for line in lines)
    assert 0 < lines[0].box[0][0] < 0.1 and lines[-1].box[2][0] < 0.9
