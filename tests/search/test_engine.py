from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from colour_model import COLOURS, ColourModel
from openvse.errors import BadImageError, DataError, IndexFormatError, ModelError
from openvse.indexing import Index, build_index
from openvse.search import Answer, Hit, Page, Query, SearchEngine
from openvse.search.hits import Hits
from openvse.tokenization.vocabulary import UnknownWord
from openvse.types import EmbeddingSet
from resealing import reseal
from tests.naming import names, refusal


@pytest.fixture
def index(model: ColourModel, photos: Path, tmp_path: Path) -> Index:
    build_index(model, photos, tmp_path / "index")
    return Index.open(tmp_path / "index")


@pytest.fixture
def engine(model: ColourModel, index: Index) -> SearchEngine:
    return SearchEngine(model, index)


def test_a_word_finds_its_image(engine: SearchEngine, photos: Path) -> None:
    answers = engine.search(list(COLOURS), top_k=1)
    found = [hits[0].path for hits in answers]
    assert found == [photos / f"{name}.png" for name in ("red", "green", "blue", "deeper/white")]


def test_hits_are_ranked(engine: SearchEngine, photos: Path) -> None:
    (hits,) = engine.search(["blue"], top_k=3)
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert str(hits[0]) == f"Hit 1: blue.png ({hits[0].score:.4f}, 'blue')"
    assert str([hits[0]]) == f"[{hits[0]}]" and "<table>" in hits[0]._repr_html_()
    assert len(str(hits[:2]).splitlines()) == 3 and hits[:2] == [*hits][:2]
    assert str(engine.answer(Query("blue"))[0]).splitlines()[-1] == "4 of 4 searched"
    assert hits[0] == Hit(1, hits[0].score, "blue.png", photos / "blue.png", by="both", matched=("blue",))
    assert hits[0].score == pytest.approx(1.0, abs=1e-3)
    assert hits[0].score > hits[1].score >= hits[2].score


def test_another_model_is_refused(index: Index) -> None:
    assert names(refusal(IndexFormatError, lambda: SearchEngine(ColourModel("colours-2"), index)), "colours")


class ContraryModel(ColourModel):
    """Scores the nearest lowest."""

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return -super().score(images, texts)


def test_the_model_decides_what_is_near(index: Index, engine: SearchEngine) -> None:
    contrary = SearchEngine(ContraryModel(), index)
    looks = Page(only="similarity")
    for found, reverse in zip(engine.answer(list(COLOURS), looks), contrary.answer(list(COLOURS), looks), strict=True):
        assert [hit.id for hit in found.hits] == [hit.id for hit in reversed(reverse.hits)]
        assert [hit.score for hit in found.hits] == [-hit.score for hit in reversed(reverse.hits)]


class ForgetfulModel(ColourModel):
    """Knows no words but colours, and says so."""

    def unknown_words(self, captions: Sequence[str]) -> list[list[UnknownWord]]:
        return [[UnknownWord(word) for word in caption.split() if word not in COLOURS] for caption in captions]

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
        return super().encode_text([caption.split()[-1] for caption in captions])


def test_an_answer_says_which_words_of_its_query_are_unknown(index: Index) -> None:
    engine = SearchEngine(ForgetfulModel(), index)
    answers = engine.answer(["some mauve red", "green"])
    assert [answer.unknown_words for answer in answers] == [(UnknownWord("some"), UnknownWord("mauve")), ()]


def test_a_query_by_itself(engine: SearchEngine, photos: Path) -> None:
    assert [engine.search("red", top_k=2)] == engine.search(["red"], top_k=2)
    for image in (photos / "green.png", str(photos / "green.png"), Image.open(photos / "green.png")):
        (hit,) = engine.search(image, top_k=1)
        assert hit.id == "green.png"
    refusal(BadImageError, lambda: engine.search(Query(image=photos / "nowhere.png")))


def test_an_empty_query_does_not_cancel_the_others(engine: SearchEngine, caplog: pytest.LogCaptureFixture) -> None:
    assert engine.answer(["red", ""])[1] == Answer(Hits())
    caplog.clear()
    first, second, third = engine.search(["red", " ", "blue"], top_k=1)
    assert [hit.id for hit in (*first, *third)] == ["red.png", "blue.png"]
    assert second == []
    (told,) = caplog.messages
    assert names(told, 1, 3)
    refusal(DataError, engine.search, ["", " "])


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_damaged_embedding_never_ranks(value: float, model: ColourModel, photos: Path, index: Index) -> None:
    reseal(index.path, 2, value)
    with pytest.raises(IndexFormatError, match=f"{index.items[2].id}.*NaN"):
        SearchEngine(model, Index.open(index.path)).search(["red"])


def test_a_query_without_numbers_is_refused(index: Index) -> None:
    class Broken(ColourModel):
        def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
            embedded = super().encode_text(captions)
            return EmbeddingSet(embedded.vectors * torch.nan, embedded.mask)

    assert names(refusal(ModelError, lambda: SearchEngine(Broken(), index).search(["red"])), "NaN")
