"""Sentences are cleaned as a model was trained, and words that a tokenizer spells out are unknown."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from openvse.runtime.model import PieceTokenizer
from openvse.tokenization.vocabulary import UnknownWord, cleaned, count_spelled, unknown_words


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("Don\u2019t  say \u201cno\u201d", 'don\'t say "no"'),
        ("Salt &amp;amp; Pepper", "salt & pepper"),
        ("\ufb01sh \uff26ull", "fish full"),
        ("schÃ¶n", "schön"),
        ("A dog\ud83d", "a dog\ufffd"),
        ("\uff21\u3000B\u00a0C", "a b c"),
    ],
)
def test_open_clip_mends_a_sentence(given: str, wanted: str) -> None:
    assert cleaned(given, "open_clip") == wanted


def test_small_letters_are_those_of_the_tokenizers_library() -> None:
    for text in ("Dog", "ÉTRETAT", "ΟΔΟΣ", "İstanbul", "ẞ"):
        assert cleaned(text, "lower") == normalizers.Lowercase().normalize_str(text)
    assert cleaned("A \ud83d Dog", "none") == "A \ufffd Dog"


def letters(words: Sequence[str]) -> list[tuple[list[int], list[str]]]:
    """Cut words as WordPiece for English does: known words stay, others are spelled, and one letter is missing."""
    known = {"dog", "2", "собака"}
    cut = [[word] if word in known else list(word) for word in words]
    return [([0 if piece == "猫" else 1 for piece in pieces], pieces) for pieces in cut]


def in_bytes(words: Sequence[str]) -> list[tuple[list[int], list[str]]]:
    """Cut words into bytes, as SentencePiece does with letters that it lacks, after the mark of a space."""
    return [([1] * len(word.encode()), ["▁", *(f"<0x{each:02X}>" for each in word.encode())]) for word in words]


@pytest.mark.parametrize("word", ["قطة", "«قطة»", "дом", "ねこ", "שלום,"])
def test_a_word_that_is_spelled_out_is_unknown(word: str) -> None:
    for encode in (letters, in_bytes):
        assert unknown_words(f"dog {word} {word}", encode, 0) == [UnknownWord(word)]
    assert count_spelled([f"dog {word}", "dog"], letters, 0) == len(word.strip("«»,"))


def test_what_a_tokenizer_knows_is_not_unknown() -> None:
    assert unknown_words("猫 北 北京 собака (собака) dog dgo naïve x² 3.5 — 🐶", letters, 0) == [UnknownWord("猫")]
    assert unknown_words("猫 ж naïve dog", in_bytes, None) == [UnknownWord("猫"), UnknownWord("ж")]
    assert unknown_words("", letters, 0) == []


def test_a_runtime_cleans_as_its_export_says(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "dog": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    said = {"file": "tokenizer.json", "max_length": 8, "unknown": 0, "cut": "right"}
    assert PieceTokenizer(tmp_path, **said).tokenize(["A dog", "a \ud83d"]) == [[0, 2], [1, 0]]
    assert PieceTokenizer(tmp_path, **said, cleaning="lower").tokenize(["A DOG"]) == [[1, 2]]
    assert PieceTokenizer(tmp_path, **said, cleaning="open_clip").unknown_words("\uff21 DOG Cat") == [
        UnknownWord("Cat")
    ]
