"""Hits with probabilities, and the precision that a search may ask for."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from colour_model import COLOURS, ColourModel
from openvse.errors import DataError, ModelError
from openvse.indexing import Index, build_index
from openvse.scoring.calibration import PART, Calibration, CalibrationData, ShortCurve
from openvse.search import Hit, Page, Query, SearchEngine, contact_sheet
from openvse.search.hits import FITS, SAID, Probabilities, title_of
from openvse.types import EmbeddingSet
from tests.naming import names, refusal

CURVE = Calibration(
    model="colours-1",
    data=CalibrationData("colours", num_images=100, num_texts=10, num_pairs=10),
    scores=(-1.0, 0.0, 1.0),
    log_ratios=(-5.0, 0.0, 5.0),
    relevant_above=(1.0, 0.9, 0.5),
)


RED, GREEN = "pictures showing something red", "pictures showing something green"


@dataclass
class CalibratedModel(ColourModel):
    calibration: Calibration | None = None

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
        return super().encode_text([caption.split()[-1] for caption in captions], batch_size)


@pytest.fixture
def engine(photos: Path, tmp_path: Path) -> SearchEngine:
    model = CalibratedModel(calibration=CURVE)
    build_index(model, photos, tmp_path / "index")
    return SearchEngine(model, Index.open(tmp_path / "index"))


def find(engine: SearchEngine, queries: object, **page: object) -> list[list[Hit]]:
    return [answer.hits for answer in engine.answer(queries, Page(**page))]


def test_hits_have_the_probability_of_their_score_in_an_index_of_this_size(engine: SearchEngine) -> None:
    hits = engine.search(RED)
    scores = np.array([hit.score for hit in hits])
    assert len(hits) == engine.answer(RED)[0].searched == 4
    assert [hit.probability for hit in hits] == pytest.approx(CURVE.probabilities(scores, 4))
    assert hits[0].probability != pytest.approx(CURVE.probabilities(scores)[0])  # of 100 images


def test_a_precision_leaves_out_what_scores_too_low(engine: SearchEngine) -> None:
    all_hits, wanted = engine.search(RED), 0.9
    (hits,) = find(engine, RED, min_precision=wanted)
    threshold = CURVE.threshold(wanted, gallery=4)
    assert threshold is not None
    assert hits == [hit for hit in all_hits if hit.score >= threshold]
    assert 0 < len(hits) < len(all_hits)
    assert find(engine, RED, min_precision=1.0) == [[]]
    assert [len(each) for each in find(engine, [RED, GREEN], min_precision=wanted)] == [len(hits), 1]


def test_a_precision_is_out_of_reach_only_where_nothing_is_left(photos: Path, tmp_path: Path) -> None:
    (photos / "red.png").rename(photos / "one big red.png")
    model, wanted, best = CalibratedModel(calibration=CURVE), 0.99, CURVE.highest(4, 1.0)
    assert best < wanted < 1 - (1 - best) * (1 - SAID)
    build_index(model, photos, tmp_path / "index")
    engine = SearchEngine(model, Index.open(tmp_path / "index"))
    for precision, skip, more, is_left, is_warned in (
        (wanted, 0, {}, True, False),  # by its words
        (wanted, 1, {}, False, False),  # the first page has one
        (wanted, 0, {"only": "similarity"}, False, True),
        (0.9999, 0, {}, False, True),
        (0.9999, 0, {"where": "path = none"}, False, False),  # there is none
        (0.5, 0, {"min_score": 9.0}, False, False),
    ):
        (answer,) = engine.answer("one big red", Page(4, skip, min_precision=precision, **more))
        assert (bool(answer.hits), bool(answer.warnings)) == (is_left, is_warned), (precision, skip, more)
        assert all(f"{precision:g}" in line and f"{best:.2g}" in line for line in answer.warnings)


def test_more_expected_images_make_every_image_more_probable(engine: SearchEngine) -> None:
    (few,), (many,) = find(engine, RED, expected=0.1), find(engine, RED, expected=2.0)
    for one, other in zip(few, many, strict=True):
        assert one.probability is not None and other.probability is not None
        assert one.probability < other.probability


def test_images_that_are_asked_with_have_no_probability(engine: SearchEngine, photos: Path) -> None:
    assert {hit.probability for hit in engine.search(Query(image=photos / "red.png"))} == {None}


@pytest.mark.parametrize("model", [ColourModel(), CalibratedModel()], ids=["knows of none", "has none"])
def test_without_a_curve_there_is_no_probability(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    engine = SearchEngine(model, Index.open(tmp_path / "index"))
    assert engine.calibration is None
    assert {hit.probability for hit in engine.search("red")} == {None}
    assert names(refusal(ModelError, find, engine, "red", min_precision=0.8), "MODEL", "--on", "DATA")


@pytest.mark.parametrize("wanted", [0.0, -1.0, 1.5])
def test_an_impossible_precision_is_refused(engine: SearchEngine, wanted: float) -> None:
    assert names(refusal(DataError, find, engine, RED, min_precision=wanted), "min_precision", wanted)


@pytest.mark.parametrize("expected", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_expectation_is_refused(engine: SearchEngine, expected: float) -> None:
    for engine.calibration in (CURVE, None):
        assert names(refusal(DataError, find, engine, RED, expected=expected), "expected", expected)


def test_a_refined_search_counts_the_images_that_fulfil_its_conditions(engine: SearchEngine) -> None:
    given = ("path ~ *e.png",)
    (hits,) = find(engine, Query(RED), where=given)
    assert engine.answer(RED, Page(where=given))[0].searched == len(hits) == 2
    expected = CURVE.probabilities(np.array([hit.score for hit in hits]), len(hits), 0.5)
    (hits,) = find(engine, Query(RED), where=given, expected=0.5)
    assert [hit.probability for hit in hits] == pytest.approx(expected)
    (best,) = find(engine, Query(RED), min_precision=0.9)
    assert best == find(engine, RED, min_precision=0.9)[0]


def test_only_a_sentence_by_itself_has_probabilities(engine: SearchEngine, photos: Path) -> None:
    compound = [Query(RED, image=photos / "red.png"), Query(RED, avoid=("green",)), Query(like="red.png"), Query(RED)]
    found = find(engine, compound)
    assert [hits[0].probability is None for hits in found] == [True, True, True, False]
    for query in compound[:3]:
        assert names(refusal(DataError, find, engine, [query, Query(RED)], min_precision=0.5), "min_precision")


def test_the_contact_sheet_shows_in_a_word_how_well_an_image_fits(tmp_path: Path) -> None:
    hit = Hit(1, 0.5, "a.png", tmp_path / "a.png", probability=0.17, fit="likely")
    assert 'title="probability: 17 %">likely</span>' in contact_sheet({"a": [hit]})
    assert 'class="fit"' not in contact_sheet({"a": [Hit(1, 0.5, "a.png", tmp_path / "a.png")]})


def test_a_word_says_the_probability_of_its_hit() -> None:
    scores = np.linspace(0, 1, 101)
    for searched, expected in ((50, None), (5000, None), (5000, 7.0)):
        of_all = Probabilities(CURVE, searched, expected, None)
        found = of_all.of(scores)
        assert [value for value, _ in found] == pytest.approx(CURVE.probabilities(scores, searched, expected))
        assert [fit for _, fit in found] == [
            "likely" if value >= 0.5 else "possible" if value >= 0.1 else "unlikely" for value, _ in found
        ]
        for word, least in of_all.fits().items():
            if least is not None and least > scores[0]:
                good = [fit for score, (_, fit) in zip(scores, found, strict=True) if score >= least]
                assert good and {*good} <= {"likely", word}, word
    assert Probabilities(None, 10, None, None).of(scores) == [(None, "")] * len(scores)
    assert Probabilities(None, 10, None, None).fits() == {}


SHORT = replace(CURVE, short={"1": ShortCurve(30, (-2.0, 0.0, 2.0), (-6.0, 0.0, 6.0))})


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Write twenty images, three of which are called red, one of them a green one."""
    (tmp_path / "many").mkdir()
    rows = []
    for number in range(20):
        colour = "red" if number < 4 else "green" if number < 10 else "blue"
        Image.new("RGB", (16, 16), (*COLOURS[colour][:2], number)).save(tmp_path / "many" / f"{number:02d}.png")
        said = "red" if number in (0, 1, 9) else "plain"
        rows.append(json.dumps({"file_name": f"{number:02d}.png", "captions": [f"something {said}"]}))
    (tmp_path / "many" / "metadata.jsonl").write_text("\n".join(rows))
    build_index(CalibratedModel(), tmp_path / "many", tmp_path / "captioned")
    return tmp_path / "captioned"


def test_the_words_of_a_short_query_say_how_many_images_to_expect(captioned: Path) -> None:
    engine = SearchEngine(CalibratedModel(calibration=SHORT), captioned)
    (answer,) = engine.answer("red", Page(20))
    assert answer.probabilities is not None and answer.probabilities.expected == 3.0
    scores = np.array([hit.score for hit in answer.hits])
    curve = SHORT.of_short("1", float(scores.mean()), float(scores.std()))
    assert curve is not None
    of_all, of_red = (curve.probabilities(scores, size, 3.0).tolist() for size in (20, 3))
    for hit, by_score, among_red in zip(answer.hits, of_all, of_red, strict=True):
        wanted = 1 - (1 - among_red) * (1 - SAID) if hit.matched else by_score
        assert hit.probability == pytest.approx(wanted, abs=1e-4)
        assert hit.fit == next(word for word, least in FITS.items() if (hit.probability or 0) >= least)
    assert {hit.fit for hit in answer.hits if hit.matched} == {"likely"}
    assert {hit.id for hit in answer.hits if hit.matched} == {"00.png", "01.png", "09.png"}
    (least,) = engine.answer("red", Page(20, min_precision=0.5))
    assert least.hits == [hit for hit in answer.hits if (hit.probability or 0) >= 0.5]
    (many,) = engine.answer("red", Page(20, expected=9.0))
    assert sum(hit.probability or 0 for hit in many.hits) > sum(hit.probability or 0 for hit in answer.hits)
    assert engine.answer("red", Page(20, only="similarity"))[0].probabilities == answer.probabilities

    # A caption that names half of what is shown leaves half of the red images unnamed: the odds of the others halve.
    half = SearchEngine(CalibratedModel(calibration=replace(SHORT, said=0.5)), captioned)
    odds = (values := curve.probabilities(scores, 20, 6.0)) / (1 - values) / 2
    for hit, wanted in zip(half.search("red", 20), (odds / (1 + odds)).tolist(), strict=True):
        assert hit.matched or hit.probability == pytest.approx(wanted, abs=1e-4)

    (alone,) = half.answer("green", Page(20))  # no caption names it, as half of them would
    assert alone.probabilities is not None and alone.probabilities.expected == 0.25 / 0.5

    # An item with one of two words has a curve of its own, as the word raises its score already.
    both = replace(CURVE, short={"2": SHORT.short["1"], PART: ShortCurve(30, (-2.0, 2.0), (0.0, 0.0))})
    found = SearchEngine(CalibratedModel(calibration=both), captioned).search("07 red", 20)
    said = {hit.matched: hit.probability for hit in found if hit.matched}
    assert said == {("red",): pytest.approx(0.5 / 3), ("07",): pytest.approx(0.5)}


@pytest.mark.parametrize("curve", [CURVE, SHORT], ids=["no curve of short queries", "no captions"])
def test_where_too_little_is_known_no_word_is_said(curve: Calibration, photos: Path, tmp_path: Path) -> None:
    build_index(ColourModel(), photos, tmp_path / "index")
    engine = SearchEngine(CalibratedModel(calibration=curve), tmp_path / "index")
    assert {(hit.probability, hit.fit) for hit in engine.search("red")} == {(None, "")}
    assert None not in {hit.probability for hit in engine.search(RED)}
    assert names(refusal(DataError, engine.search, "red", min_precision=0.5), "min_precision")
    said = {hit.fit for hit in engine.answer("red", Page(expected=2.0))[0].hits}
    assert ("" not in said) is bool(curve.short)


@pytest.mark.parametrize(
    ("metadata", "title"),
    [
        ({"file_name": "a.png", "tags": ["x"], "artist": "Ann Lee", "title": " A  dog "}, "A dog"),
        ({"title": "T", "captions": ["Two dogs", "Dogs"]}, "Two dogs"),
        ({"file_name": "a.png", "year": 2000, "annotation": "cat"}, "cat"),
        ({"captions": [], "title": None, "file_name": "b.png", "tags": ["x"]}, ""),
        ({"title": "12", "name": "Zürich"}, "Zürich"),
    ],
)
def test_an_item_is_called_by_its_caption_title_or_another_text(metadata: dict[str, object], title: str) -> None:
    assert title_of(metadata) == title
