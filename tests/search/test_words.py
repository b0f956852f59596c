"""Words and looks together: what finds an item by its name or by what is said of it, and how the rankings join."""

# ruff: noqa: RUF001
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from colour_model import COLOURS, ColourModel, paint
from openvse.errors import DataError
from openvse.indexing import Index, build_index
from openvse.indexing.database import Database, Entry, Root
from openvse.indexing.manifest import Item
from openvse.indexing.words import query_words
from openvse.indexing.writer import IndexWriter
from openvse.model.two_tower import TwoTower
from openvse.retrieval.hit_reranker import HitReranker
from openvse.scoring.calibration import Calibration, CalibrationData
from openvse.search import Hit, Page, Query, SearchEngine
from openvse.search.exact import DEPTH, MOST, Ranking, WordHits, joined
from openvse.types import EmbeddingSet
from tests.failures import Failures

SAID = (
    {"file_name": "IMG_2041.png", "caption": "Grandma at the café", "keywords": ["Straße", "東京タワー", "Łódź"]},
    {"file_name": "trip/DSC0007.png", "sentences": [{"raw": "a boat"}], "mood": "unheard"},
)


class Painter(ColourModel):
    """Embeds a sentence by the first colour in it; red where there is none."""

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
        words = [[word for word in caption.split() if word in COLOURS] for caption in captions]
        return super().encode_text([(each or ["red"])[0] for each in words], batch_size)


@pytest.fixture
def model() -> Painter:
    return Painter()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 30 green images, one of which is called IMG_2041, a red one in a folder, and two blue ones."""
    folder = tmp_path_factory.mktemp("words") / "photos"
    for number in range(29):
        paint(folder / f"x{number:02d}.png", "green")
    paint(folder / "IMG_2041.png", "green")
    paint(folder / "trip" / "DSC0007.png", "red")
    for name in ("y1", "y2"):
        paint(folder / f"{name}.png", "blue")
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, SAID)))
    build_index(Painter(), folder, folder.parent / "index")
    return folder.parent / "index"


@pytest.fixture
def own(out: Path, tmp_path: Path) -> Path:
    """A copy of the index and its images, which may be changed."""
    shutil.copytree(out.parent, tmp_path / "own")
    build_index(Painter(), tmp_path / "own" / "photos", tmp_path / "own" / "index", overwrite=True)
    return tmp_path / "own" / "index"


def words(out: Path, query: str, where: tuple[str, ...] = ()) -> list[str]:
    engine = SearchEngine(Painter(), Index.open(out))
    return [hit.id for hit in engine.answer(Query(query), Page(60, only="words", where=where))[0].hits]


FINDING = {  # the first item of each query; the syntax of FTS5 is words as any
    "IMG_2041.png": (
        "IMG_2041|2041|img 2041|img2041|IMG-2041.PNG|grandma|GRANDMA cafe\u0301|cafe|STRASSE|lodz|the|東京"
    ),
    "trip/DSC0007.png": "boat OR|NOT boat|boat*|boa*|^boat|(boat|- + boat",
    "": 'unheard|京東|cafe_at|png_grandma|204|metadata|?! \U0001f600|q\0b \ud800|"|AND|text:boat|NEAR(boat, 9)',
}


def test_names_and_texts_find_an_item_and_what_is_no_word_nothing(out: Path) -> None:
    failures = Failures()
    for item, queries in FINDING.items():
        for query in queries.split("|"):
            with failures.of(query):
                assert words(out, query)[:1] == [item] * bool(item)
    assert not failures, failures
    assert words(out, "東" * 3000) == []


def test_both_rankings_join_and_a_hit_says_why(out: Path) -> None:
    engine = SearchEngine(Painter(), Index.open(out))
    (answer,) = engine.answer("blue 2041", Page(top_k=2))
    found = [(hit.id, hit.by, hit.matched) for hit in answer.hits]
    assert found == [("IMG_2041.png", "words", ("2041",)), ("y1.png", "similarity", ())]
    (looks,) = engine.answer("blue 2041", Page(top_k=33, only="similarity"))
    scores = {hit.id: hit.score for hit in looks.hits}
    assert all(hit.score == scores[hit.id] for hit in answer.hits)
    (other,) = engine.answer("red boat", Page(top_k=1))
    assert [(hit.by, hit.matched) for hit in other.hits] == [("both", ("boat",))]
    assert other.hits[0].to_json()["matched"] == ["boat"]


def test_without_words_the_order_is_that_of_looks(out: Path) -> None:
    engine = SearchEngine(Painter(), Index.open(out))
    for query in ("blue", "green nothing", Query(image=out.parent / "photos" / "y1.png")):
        (both,), (looks,) = engine.answer(query, Page()), engine.answer(query, Page(only="similarity"))
        assert both.hits == looks.hits
    with pytest.raises(DataError):
        engine.answer(Query("2041", like="y1.png"), Page(only="words"))


def test_pages_conditions_and_thresholds_hold_for_both(out: Path) -> None:
    engine = SearchEngine(Painter(), Index.open(out))
    whole = engine.search("blue grandma boat", top_k=33)
    pages = [engine.answer("blue grandma boat", Page(4, skip))[0].hits for skip in range(0, 33, 4)]
    assert [hit.id for page in pages for hit in page] == [hit.id for hit in whole]
    assert [hit.rank for page in pages for hit in page] == [*range(1, 34)]
    assert words(out, "grandma boat", where=("path ~ trip/*",)) == ["trip/DSC0007.png"]
    (answer,) = engine.answer("blue grandma", Page(33, min_score=0.5))
    assert [hit.id for hit in answer.hits] == ["y1.png", "y2.png"]


def test_a_probability_is_that_of_looks(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, knots = CalibrationData("x", 60, 60, 60), ((-1.0, 1.0), (-9.0, 9.0), (1.0, 0.0))
    monkeypatch.setattr(Painter, "calibration", Calibration("colours-1", data, *knots), raising=False)
    engine = SearchEngine(Painter(), Index.open(out))
    best = engine.answer("blue 2041 pictures wanted", Page(3))[0].hits
    assert [hit.id for hit in best] == ["IMG_2041.png", "y1.png", "y2.png"]
    assert (best[0].probability or 1) < 0.1
    sure = engine.answer("blue 2041 pictures wanted", Page(3, min_precision=0.5))[0].hits
    assert [(hit.rank, hit.id) for hit in sure] == [(2, "y1.png"), (3, "y2.png")]


def test_a_second_model_ranks_the_joined_order_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(_: object, queries: Sequence[Query], results: Sequence[Sequence[Hit]]) -> list[dict[str, float]]:
        return [{hit.id: float(hit.rank) for hit in hits[:2]} for hits in results]

    monkeypatch.setattr(HitReranker, "_scores", scored)
    engine = SearchEngine(Painter(), Index.open(out))
    (answer,) = engine.answer("blue 2041", Page(3), HitReranker(Mock(spec=TwoTower, calibration=None), top=2))
    assert [hit.id for hit in answer.hits] == ["y1.png", "IMG_2041.png", "y2.png"]
    assert (answer.hits[1].by, answer.hits[1].matched) == ("both", ("2041",))
    assert answer.before == {"IMG_2041.png": 1, "y1.png": 2}


def test_the_segments_of_a_clip_are_one_file(model: Painter, tmp_path: Path) -> None:
    names = [f"{clip}.mp4#t={start},{start + 5}" for clip in ("garden", "party") for start in (0, 5, 10)]
    with IndexWriter(tmp_path, model=model.fingerprint, roots=[Root(0, "/clips", "")]) as writer:
        vectors = model.encode_text(["blue"] * 3 + ["green", "red", "green"]).vectors.numpy()
        writer.append([Entry(Item(name, 0, 1), kind="clip") for name in names], vectors)
    engine = SearchEngine(model, Index.open(tmp_path))
    (answer,) = engine.answer("red party", Page(one_per="file"))
    assert [(hit.path.name, hit.start, hit.by) for hit in answer.hits] == [
        ("party.mp4", 5, "both"),
        ("garden.mp4", 0, "similarity"),
    ]
    assert len(engine.answer("party", Page(only="words"))[0].hits) == 3


def test_the_rarer_its_words_are_the_more_of_a_sentence_an_item_has() -> None:
    said = WordHits.of({"a": np.array([3, 5, 4]), "b": np.array([5])}, 10, 20)
    whole = math.log1p(10 / 3) + math.log1p(10)
    assert said.positions.tolist() == [5, 3, 4]
    assert said.shares.tolist() == pytest.approx([1, *[math.log1p(10 / 3) / whole] * 2], abs=1e-6)
    assert [said.matched(row) for row in range(3)] == [("a", "b"), ("a",), ("a",)]
    assert len(WordHits.of({}, 10, 20)) == 0


def test_items_with_equal_words_share_a_rank_and_looks_decide() -> None:
    scores = np.array([0.9, 0.1, 0.5, 0.2], np.float32)
    said = WordHits(np.array([1, 2, 3]), np.array([1.0, 1.0, 0.5]), ("x",), np.ones(3, np.uint64))
    assert said.sums().tolist() == [1 / 61, 1 / 61, 0.125 / 63]

    def best(positions: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.argsort(-scores[positions], kind="stable")[:most]
        return scores[positions][places], places

    def order(looks: list[int], count: int | None = None) -> list[int]:
        ranking = joined(said, Ranking.by_similarity(scores[looks], np.array(looks)), best, count)
        assert ranking.scores.tolist() == scores[ranking.positions].tolist()
        return ranking.positions.tolist()

    assert (order([0]), order([0], 2), order([0], 1)) == ([2, 1, 0, 3], [2, 1], [2])
    assert order([0, 3]) == [3, 2, 1, 0]
    few = WordHits(np.array([200]), np.array([0.5]), ("x",), np.ones(1, np.uint64))
    deep = Ranking.by_similarity(np.full(DEPTH + 1, 0.5, np.float32), np.array([*range(DEPTH), 200]))
    assert joined(few, deep, best).positions[-1] == 200


def test_so_many_items_with_words_are_kept_and_the_best_among_them() -> None:
    rare, common = np.array([MOST + 7, MOST + 9]), np.arange(MOST + 10)
    said = WordHits.of({"common": common, "rare": rare}, MOST + 10, MOST + 10)
    assert len(said) == MOST and said.positions[:3].tolist() == [MOST + 7, MOST + 9, 0]


SPELLED = {  # of an item, and queries that find it alone
    "किताब": ("किताब",),
    "कातिब": ("कातिब",),
    "मेला": ("मेला",),
    "माला": ("माला",),
    "বই": ("বই",),
    "தமிழ்": ("தமிழ்",),
    "สวัสดี": ("สวัสดี",),
    "שָׁלוֹם": ("שלום", "שָׁלוֹם"),
    "كِتَاب": ("كتاب", "كتـــاب"),
    "می\u200cخواهم": ("میخواهم", "می\u200cخواهم"),
    "ＩＭＧ９０４１": ("IMG9041", "img_9041"),
    "ﾃﾚﾋﾞ": ("テレビ",),
    "soft\u00adhyphen": ("softhyphen", "SOFTHYPHEN"),
    "ılıca": ("ilica", "ILICA", "ılıca"),
    "İzmir": ("izmir", "IZMIR", "İZMİR"),
    "I\u0307stanbul": ("istanbul",),
    "beach,sunset": ("beach", "sunset", "sunset/beach", "beach;sunset"),
    "❤️ heart": ("heart", "❤️heart"),
    "well-known": ("well-known", "well known", "known"),
}


def test_marks_belong_to_their_word_and_forms_of_letters_are_one(tmp_path: Path) -> None:
    with IndexWriter(tmp_path, model="colours-1", roots=[Root(0, "/photos", "")]) as writer:
        names = [f"p{number}.png" for number in range(len(SPELLED))]
        vectors = Painter().encode_text(["red"] * len(names)).vectors.numpy()
        writer.append([Entry(Item(name, 0, 1)) for name in names], vectors)
        items = [(json.dumps({"caption": text}), "{}", key) for key, text in enumerate(SPELLED, start=1)]
        writer.at_the_end(lambda database: database.describe(items))
    engine = SearchEngine(Painter(), Index.open(tmp_path))
    for name, (text, queries) in zip(names, SPELLED.items(), strict=True):
        for query in queries:
            assert words(tmp_path, query) == [name], (text, query)
        where = (f'caption contains "{queries[0]}"',)
        looked_up = engine.answer("red", Page(50, where=where, only="similarity"))[0].hits
        assert name in [hit.id for hit in looked_up] or "/" in queries[0] or "-" in text, (text, where)
    assert words(tmp_path, "known-well") == []


def test_a_word_counts_once_and_is_shown_without_signs() -> None:
    assert query_words("black cat, white cat; (Cat!) dog/cat") == {
        "black": ["black"],
        "cat": ["cat"],
        "white": ["white"],
        "dog": ["dog"],
    }


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 60 drawn items: Grandma is in 15, a wedding in 12 of these, Zoe in one without Grandma."""
    folder = tmp_path_factory.mktemp("family")
    with IndexWriter(folder, model="colours-1", roots=[Root(0, "/photos", "")]) as writer:
        names = [f"p{number:02d}.png" for number in range(60)]
        vectors = Painter().encode_text([[*COLOURS][number % 4] for number in range(60)]).vectors.numpy()
        writer.append([Entry(Item(name, number, 1)) for number, name in enumerate(names)], vectors)

        def describe(database: Database) -> None:
            keys = dict(database.read("SELECT id, key FROM items"))
            said = [
                ["Grandma"] * (number < 15)
                + ["wedding"] * (number < 12)
                + ["Zoe"] * (number == 40)
                + ["lake"] * (12 < number < 17)
                for number in range(60)
            ]
            database.describe(
                [
                    (json.dumps({"people": each, "year": number % 15}), "{}", keys[name])
                    for number, (name, each) in enumerate(zip(names, said, strict=True))
                ]
            )

        writer.at_the_end(describe)
    return folder


def test_a_common_word_is_left_out_only_where_a_rarer_one_finds_something(family: Path) -> None:
    grandma = [f"p{number:02d}.png" for number in range(15)]
    assert sorted(words(family, "grandma")) == grandma
    engine = SearchEngine(Painter(), Index.open(family))
    (answer,) = engine.answer("red grandma", Page(20))
    assert sorted(hit.id for hit in answer.hits[:15]) == grandma
    both = engine.answer("grandma wedding", Page(60, only="words"))[0].hits
    assert {hit.matched for hit in both[:12]} == {("grandma", "wedding")}
    assert {hit.matched for hit in both[12:]} == {("grandma",)} and len(both) == 15
    assert words(family, "grandma zoe") == ["p40.png"]  # which one item has
    assert sorted(words(family, "grandma nobody")) == grandma


def test_a_word_is_common_among_the_items_that_fulfil_conditions(family: Path) -> None:
    where = ("year < 3",)  # 12 items, of which 3 show Grandma
    found = SearchEngine(Painter(), Index.open(family)).answer("grandma zoe", Page(60, only="words", where=where))
    assert sorted(hit.id for hit in found[0].hits) == ["p00.png", "p01.png", "p02.png"]
    assert sorted(words(family, "grandma", where=("year < 30",))) == sorted(words(family, "grandma"))


def test_words_follow_the_items(model: Painter, own: Path) -> None:
    folder = own.parent / "photos"
    (folder / "metadata.jsonl").write_text('{"file_name": "y1.png", "title": "Grandpa"}')
    (folder / "y2.png").rename(folder / "lighthouse.png")
    build_index(model, folder, own)
    assert (words(own, "grandpa"), words(own, "lighthouse")) == (["y1.png"], ["lighthouse.png"])
    assert words(own, "grandma") == words(own, "y2") == []
    (folder / "lighthouse.png").rename(folder.parent / "away.png")
    build_index(model, folder, own)
    assert words(own, "lighthouse") == []
    (folder.parent / "away.png").rename(folder / "lighthouse.png")
    build_index(model, folder, own, overwrite=True)
    assert words(own, "lighthouse") == ["lighthouse.png"]


FORMS = {  # the items of each query in their order: those with the word itself first
    **{
        "dog": "ab",
        "dogs": "ba",
        '"dog" grandpas': "a",
        "Running dogs": "cba",
        "ski*": "b",
        "child": "c",
        "woman": "b",
    },
    **{"cities": "a", "sun*": "d", "sunfl": "", "new": ""},
}


def test_other_forms_of_a_word_find_an_item_behind_the_word_itself(tmp_path: Path) -> None:
    pytest.importorskip("snowballstemmer")
    said = ("a", "the dog in the city"), ("b", "two dogs and women on skis"), ("c", "children are running"), ("d", "")
    lines = [json.dumps({"file_name": f"{name}.png", "caption": text or "sunflowers and news"}) for name, text in said]
    for name, _ in said:
        paint(tmp_path / "photos" / f"{name}.png", "green")
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    build_index(Painter(), tmp_path / "photos", out := tmp_path / "index")
    failures = Failures()
    for query, found in FORMS.items():
        with failures.of(query):
            assert words(out, query) == [f"{name}.png" for name in found]
    assert not failures, failures
    with SearchEngine(Painter(), Index.open(out)) as engine:
        assert engine.answer("dogs", Page(2, only="words"))[0].hits[1].matched == ("dogs",)
    lines[0] = lines[0].replace("the dog in the city", "der Hund und das Haus im Wald")
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join([lines[0], lines[2].replace("are", "die Hunde")]))
    build_index(Painter(), tmp_path / "photos", out)
    assert words(out, "Häuser") == ["a.png"] and words(out, "Hund") == ["a.png", "c.png"]


def test_without_the_stemmer_the_exact_word_counts(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    assert [len(words(own, word)) for word in ("boat", "boats", "boa*")] == [1, 0, 1]


def test_a_common_word_orders_items_that_are_equal_otherwise(family: Path) -> None:
    assert words(family, "lake") == ["p16.png", "p13.png", "p14.png", "p15.png"]  # the first one is red
    assert words(family, "lake grandma") == ["p13.png", "p14.png", "p16.png", "p15.png"]
