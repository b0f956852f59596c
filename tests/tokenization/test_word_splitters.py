import sys

import pytest

from openvse.encoders import BiGRU
from openvse.errors import ModelError
from openvse.tokenization.vocabulary import WORD_SPLITTERS, NLTKSplitter, Vocabulary, WordsSplitter, split_words


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man's T-shirt", ["a", "man", "s", "t", "shirt"]),
        ("Route 66, 2x faster", ["route", "66", "2x", "faster"]),
        ("Ein Mädchen\tläuft\n", ["ein", "mädchen", "läuft"]),
        ("snake_case", ["snake", "case"]),
        ("", []),
        ("?! ...", []),
    ],
)
def test_words_are_lower_case_runs_of_letters_and_digits(caption: str, expected: list[str]) -> None:
    assert split_words(caption) == expected


def test_words_are_the_default() -> None:
    assert BiGRU(embed_dim=4, captions=["A T-shirt"], min_count=1).vocabulary.split("T-shirt") == ["t", "shirt"]
    assert WORD_SPLITTERS.get("words")()("A T-shirt") == WordsSplitter()("A T-shirt") == split_words("A T-shirt")


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man's T-shirt.", ["a", "man", "'s", "t-shirt", "."]),
        ("Two dogs. They run!", ["two", "dogs", ".", "they", "run", "!"]),
        ("Mr. Smith in the U.S. capital", ["mr.", "smith", "in", "the", "u.s.", "capital"]),
        ('a sign that says "stop", red', ["a", "sign", "that", "says", "``", "stop", "''", ",", "red"]),
        ("they cannot sit, don't they", ["they", "can", "not", "sit", ",", "do", "n't", "they"]),
        ("", []),
    ],
)
def test_nltk_keeps_punctuation_and_splits_contractions(caption: str, expected: list[str]) -> None:
    assert NLTKSplitter()(caption) == expected


def test_nltk_equals_word_tokenize_within_a_sentence() -> None:
    from nltk.tokenize import word_tokenize

    caption = "a diver (male), 3,000 feet & 5% -- isn't he 'brave'?"
    assert NLTKSplitter()(caption) == word_tokenize(caption, preserve_line=True)


def test_a_missing_nltk_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    with pytest.raises(ModelError, match=r"NLTK.*pip install"):
        NLTKSplitter()


def test_a_vocabulary_splits_as_it_was_told(tmp_path) -> None:
    split = NLTKSplitter()
    vocabulary = Vocabulary.from_captions(["It's a dog."], split=split)
    assert sorted(vocabulary.words) == ["'s", ".", "a", "dog", "it"]
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json", split=split)
    assert loaded.ids("it's.") == [loaded.id_of(word) for word in ("it", "'s", ".")]


def test_bigru_takes_the_tokenizer_with_it(tmp_path) -> None:
    saved = BiGRU(embed_dim=4, captions=["a dog's bone."], min_count=1, word_dim=3, tokenizer=NLTKSplitter)
    saved.save_assets(tmp_path)
    loaded = BiGRU(embed_dim=4, assets=tmp_path, word_dim=3, tokenizer=NLTKSplitter)
    assert len(loaded.tokenize(["a dog's bone."])[0]) == 7  # five tokens between two boundaries
    assert [i.tolist() for i in loaded.tokenize(["Dog's"])] == [i.tolist() for i in saved.tokenize(["Dog's"])]
