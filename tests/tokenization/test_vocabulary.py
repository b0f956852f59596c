import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.errors import DataError, ModelError
from openvse.tokenization.vocabulary import END, MASK, PAD, SPECIALS, START, UNKNOWN, Vocabulary
from tests.naming import names, refusal

CAPTIONS = ["A dog runs.", "a DOG sits", "the dog, a cat!"]


def test_the_specials_come_first() -> None:
    assert (PAD, UNKNOWN, MASK, START, END) == (0, 1, 2, 3, 4)
    assert SPECIALS == ("<pad>", "<unk>", "<mask>", "<start>", "<end>")


def test_words_are_ordered_by_frequency_then_alphabet() -> None:
    for captions in (CAPTIONS, CAPTIONS[::-1]):
        assert Vocabulary.from_captions(captions).words == ("a", "dog", "cat", "runs", "sits", "the")


def test_rare_words_are_left_out() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=3)
    assert vocabulary.words == ("a", "dog")
    assert len(vocabulary) == 7
    assert vocabulary.ids("the dog") == [UNKNOWN, 6]


def test_encode() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS)
    ids = vocabulary.ids("A dog, a bird!")
    assert ids == [5, 6, 5, UNKNOWN]
    assert vocabulary.ids("a dog", boundaries=True) == [START, 5, 6, END]


@pytest.mark.parametrize("caption", ["", "  ", "?!"])
def test_a_caption_without_words_is_one_unknown_token(caption: str) -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS)
    assert vocabulary.ids(caption) == [UNKNOWN]
    assert vocabulary.ids(caption, boundaries=True) == [START, UNKNOWN, END]


def test_a_caption_cannot_write_a_special_token() -> None:
    assert UNKNOWN in Vocabulary.from_captions(CAPTIONS).ids("<mask>")


@pytest.mark.medium
@given(st.text())
def test_any_text_gives_valid_ids(caption: str) -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS)
    ids = vocabulary.ids(caption, boundaries=True)
    assert len(ids) >= 3
    assert min(ids) >= 0 and max(ids) < len(vocabulary)


def test_save_and_load(tmp_path) -> None:
    vocabulary = Vocabulary.from_captions([*CAPTIONS, "日本 é"])
    path = tmp_path / "new" / "vocabulary.json"
    vocabulary.save(path)
    assert Vocabulary.load(path).words == vocabulary.words
    assert [file.name for file in path.parent.iterdir()] == ["vocabulary.json"]
    assert "日本" in path.read_text(encoding="utf-8")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "vocabulary.json"
    Vocabulary(["old"]).save(path)
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    refusal(ZeroDivisionError, Vocabulary(["new"]).save, path)
    assert Vocabulary.load(path).words == ("old",)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"words": 3}', '{"words', None])
def test_a_damaged_or_missing_file_is_named(tmp_path, content: str | None) -> None:
    path = tmp_path / "vocabulary.json"
    if content is not None:
        path.write_text(content)
    assert names(refusal(ModelError, Vocabulary.load, path), "vocabulary.json")


@pytest.mark.parametrize("captions", [[], ["", "?!"]])
def test_captions_without_words_are_refused(captions: list[str]) -> None:
    assert names(refusal(DataError, Vocabulary.from_captions, captions), " 1 ", "min_count")
    assert names(refusal(DataError, Vocabulary.from_captions, CAPTIONS, min_count=9), " 9 ", "min_count")
