"""Queries of several parts, pages of hits, and conditions on items."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from colour_model import ColourModel, paint
from openvse.errors import DataError
from openvse.indexing import Index, build_index
from openvse.indexing.conditions import parse_condition
from openvse.search import Hit, Page, Query, SearchEngine
from tests.failures import Failures
from tests.naming import names, refusal

DAY = 86_400 * 10**9


@pytest.fixture
def engine(model: ColourModel, photos: Path, tmp_path: Path) -> SearchEngine:
    said = {
        "red.png": {"year": 2019, "tags": ["car", "Night"], "place name": "Rome"},
        "green.png": {"year": 2021, "tags": "car", "date": "2001"},
        "blue.png": {"year": "2021", "draft": True},
    }
    lines = [json.dumps({"file_name": name, **each}) for name, each in said.items()]
    (photos / "metadata.jsonl").write_text("\n".join(lines))
    paint(photos / "big.png", "red").write_bytes((photos / "red.png").read_bytes() + b"\0" * 5000)
    for number, name in enumerate(("red", "green", "blue")):
        os.utime(photos / f"{name}.png", ns=(19_700 * DAY + number * DAY, 19_700 * DAY + number * DAY))
    build_index(model, photos, tmp_path / "index")
    return SearchEngine(model, Index.open(tmp_path / "index"))


def find(engine: SearchEngine, queries: Query | list[Query], **page: object) -> list[list[Hit]]:
    return [answer.hits for answer in engine.answer(queries, Page(**page))]


def ids(engine: SearchEngine, query: Query, **page: object) -> list[str]:
    return [hit.id for hit in find(engine, query, **page)[0]]


def test_parts_are_weighed(engine: SearchEngine, photos: Path, model: ColourModel) -> None:
    (hits,) = find(engine, Query("red", image=photos / "blue.png", image_weight=0.25), top_k=5)
    index = engine.catalogue.index
    expected = {}
    (red,), (blue,) = model.encode_text(["red"]).vectors, model.encode_image([photos / "blue.png"]).vectors
    for position, item in enumerate(index.items):
        vector = torch.from_numpy(np.array(index.vectors[position, 0]))
        expected[item.id] = float(0.75 * (vector @ red[0]) + 0.25 * (vector @ blue[0]))
    assert {hit.id: pytest.approx(hit.score, abs=1e-5) for hit in hits} == expected
    assert [hit.id for hit in hits] == sorted(expected, key=lambda name: (-expected[name], name))


def test_equal_scores_come_in_the_order_of_ids(engine: SearchEngine) -> None:
    assert ids(engine, Query("red"), top_k=2, only="similarity") == ["big.png", "red.png"]


def test_an_item_finds_others_like_it(engine: SearchEngine) -> None:
    hits = find(engine, Query(like="red.png"), top_k=2)[0]
    assert (hits[0].rank, hits[0].id) == (1, "big.png")
    assert "red.png" not in ids(engine, Query(like="red.png"), top_k=9)
    assert names(refusal(DataError, lambda: find(engine, Query(like="gone.png"))), "gone.png")


def test_what_is_avoided_comes_later(engine: SearchEngine) -> None:
    assert ids(engine, Query("white"), top_k=5)[0] == "deeper/white.png"
    assert ids(engine, Query("green", avoid=("green",), avoid_weight=2.0), top_k=5)[-1] == "green.png"


def test_pages_and_the_lowest_score(engine: SearchEngine) -> None:
    whole = find(engine, [Query("red"), Query("blue")], top_k=5)
    for query, hits in zip(("red", "blue"), whole, strict=True):
        pages = [find(engine, Query(query), top_k=2, skip=skip)[0] for skip in (0, 2, 4)]
        assert [hit for page in pages for hit in page] == hits
    assert [hit.rank for hit in whole[0]] == [1, 2, 3, 4, 5]
    assert find(engine, Query("red"), min_score=0.9)[0] == whole[0][:2]
    assert find(engine, []) == []


CONDITIONS = [
    (["path ~ deeper/*"], ["deeper/white.png"]),
    (["path contains RED"], ["red.png"]),
    (["size > 2kB"], ["big.png"]),
    (["size > 2kB", "path = red.png"], []),
    (["kind = clip"], []),
    (["kind != clip", "size < 1 KiB", "year = 2021"], ["blue.png", "green.png"]),
    (["year >= 2020", "year < 2022"], ["blue.png", "green.png"]),
    (["year < 2020"], ["red.png"]),
    (["year != 2019"], ["big.png", "blue.png", "deeper/white.png", "green.png"]),
    (["tags = car"], ["green.png", "red.png"]),
    (["tags contains night"], ["red.png"]),
    (['"place name" = Rome'], ["red.png"]),
    (["meta.date = 2001"], ["green.png"]),
    (["draft = true"], ["blue.png"]),
    (["nothing = 1"], []),
    (['path = "\' OR 1=1 --"'], []),
    (["year = 2021); DROP TABLE items; --"], []),
]


def test_conditions(engine: SearchEngine, failures: Failures) -> None:
    for conditions, expected in CONDITIONS:
        with failures.of(conditions, expected):
            assert sorted(ids(engine, Query("red"), where=tuple(conditions))) == expected
            assert len(ids(engine, Query("red"))) == 5


@pytest.fixture
def accents(model: ColourModel, photos: Path, tmp_path: Path) -> SearchEngine:
    """Names, keys and values with letters beyond ASCII, some composed and some decomposed."""
    (photos / "red.png").rename(photos / "\u00dcBER.png")
    (photos / "green.png").rename(photos / "cafe\u0301.png")
    said = {
        "\u00dcBER.png": {"place": "\u00c9TRETAT", "gr\u00f6\u00dfe": 3, "note": "Stra\u00dfe"},
        "cafe\u0301.png": {"place": "E\u0301tretat", "gro\u0308\u00dfe": [5, "gro\u0308\u00df"]},
        "blue.png": {"place": "\u039f\u0394\u039f\u03a3", "note": "SCHNEE"},
    }
    lines = [json.dumps({"file_name": name, **each}) for name, each in said.items()]
    (photos / "metadata.jsonl").write_text("\n".join(lines))
    build_index(model, photos, tmp_path / "index")
    return SearchEngine(model, Index.open(tmp_path / "index"))


ACCENTED = [
    ("path contains \u00fcber", ["\u00dcBER.png"]),
    ("path contains u\u0308BER", ["\u00dcBER.png"]),
    ("path contains caf\u00e9", ["cafe\u0301.png"]),
    ("path = caf\u00e9.png", ["cafe\u0301.png"]),
    ("path ~ caf\u00e9.*", ["cafe\u0301.png"]),
    ("path ~ ?BER.png", ["\u00dcBER.png"]),
    ("path contains \udcff", []),
    ("place contains \u00e9tretat", ["cafe\u0301.png", "\u00dcBER.png"]),
    ("place = \u00c9tretat", ["cafe\u0301.png", "\u00dcBER.png"]),
    ("place contains \u03bf\u03b4\u03bf\u03c2", ["blue.png"]),
    ("place != \u00c9tretat", ["blue.png", "deeper/white.png"]),
    ("note contains STRASSE", ["\u00dcBER.png"]),
    ("note contains schnee", ["blue.png"]),
    ("gr\u00f6\u00dfe >= 3", ["cafe\u0301.png", "\u00dcBER.png"]),
    ("gro\u0308\u00dfe = gr\u00f6\u00df", ["cafe\u0301.png"]),
    ("gr\u00f6\u00dfe != 3", ["blue.png", "cafe\u0301.png", "deeper/white.png"]),
]


def test_case_and_accents(accents: SearchEngine, failures: Failures) -> None:
    for condition, expected in ACCENTED:
        with failures.of(condition, expected):
            (answer,) = accents.answer("red", Page(where=(condition,)))
            assert sorted(hit.id for hit in answer.hits) == expected
            assert (answer.warnings, answer.searched) == ((), len(expected))


@pytest.mark.parametrize(
    ("condition", "named", "searched"),
    [
        ("yaer = 2019", ("yaer", "year"), 0),
        ("yaer != 2019", ("yaer", "year"), 5),
        ("\u00e4hnlich contains x", ("\u00e4hnlich",), 0),
        ("pth ~ a*", ("pth", "path"), 0),
        ("draft = 1", ("draft", "true", "false", 1), 0),
        ("draft != no", ("draft", "no"), 5),
        ("tags = null", ("tags", "null"), 0),
        ("meta.date < 2002", (), 1),
        ("year = foo", (), 0),  # one of the years is a text
        ("year contains 9", (), 1),
    ],
)
def test_a_condition_on_values_that_no_item_has(
    engine: SearchEngine, caplog: pytest.LogCaptureFixture, condition: str, named: tuple[object, ...], searched: int
) -> None:
    first, second = engine.answer(["red", "blue"], Page(where=(condition, "size > 1")))
    assert (first.searched, len(first.hits), len(first.warnings)) == (searched, searched, bool(named))
    assert names("".join(first.warnings), *named) and first.warnings == second.warnings
    assert [record.message for record in caplog.records] == [*first.warnings]  # once, for both


def test_numbers_and_texts_are_not_compared(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    (photos / "metadata.jsonl").write_text('{"file_name": "red.png", "year": [2019, 7.5]}')
    build_index(model, photos, tmp_path / "index")
    with SearchEngine(model, Index.open(tmp_path / "index")) as engine:
        (answer,) = engine.answer("red", Page(where=("year = foo",)))
    assert names(answer.warnings[0], "year", "foo")


def test_dates(engine: SearchEngine) -> None:
    day = "2023-12-10"  # 19,701 days after 1970, for at least half a day wherever this runs
    before, on, after = (sorted(ids(engine, Query("red"), where=(f"date {sign} {day}",))) for sign in "<=>")
    dated = {"red.png", "green.png", "blue.png"}
    assert {*before, *on, *after} >= dated and not {*before} & {*on} and not {*on} & {*after}
    assert sorted(ids(engine, Query("red"), where=(f"date <= {day}",))) == sorted([*before, *on])
    assert {*ids(engine, Query("red"), where=("date = 2023",))} == {"red.png", "blue.png"}
    assert ids(engine, Query("red"), where=("date = 2001",)) == ["green.png"]  # by its own metadata
    assert {*ids(engine, Query("red"), where=("date != 2023-12",))} == {"green.png", "big.png", "deeper/white.png"}


NO_CONDITIONS = [
    ("year", "FIELD.*OPERATOR.*VALUE"),
    ("size > big", "big"),
    ("size ~ 3", "size.*~"),
    ("date > yesterday", "yesterday.*2024"),
    ("kind = photo", "photo.*image, clip, sentence"),
    ("a\\b = 1", r"a\\b"),
    ("date = 9999", "9999"),
    ("date < 3000-01", "3000-01"),
    (f"size > {'9' * 400}", "999"),
    ("size < 9000000 TiB", "9000000 TiB"),
]


def test_what_is_no_condition_is_refused(failures: Failures) -> None:
    for text, message in NO_CONDITIONS:
        with failures.of(text, message), pytest.raises(DataError, match=message):
            parse_condition(text)


def test_what_is_no_query_is_refused(engine: SearchEngine) -> None:
    refusal(DataError, Query, " ", avoid=("red",))
    assert names(refusal(DataError, Query, "red", image_weight=2.0), "image_weight", "2.0")
    for page in ({"skip": -1}, {"top_k": 0}):
        with pytest.raises(DataError, match="|".join(f"{name}.*{value}" for name, value in page.items())):
            find(engine, Query("red"), **page)
    for unused in ({"text": "red"}, {"like": "red.png"}, {"image": "red.png"}, {"text": " ", "like": "red.png"}):
        assert names(refusal(DataError, Query, **unused, image_weight=0.9), "image_weight")
        assert names(refusal(DataError, Query, **unused, avoid_weight=0.9), "avoid_weight")
    assert Query("red", like="red.png", image_weight=0.9).weights() == pytest.approx((0.1, 0.0, 0.9))
