"""What text encoders say of words that they do not know."""

import re

import pytest

from openvse.encoders import BiGRU, TransformersText
from openvse.encoders.words_encoder import MAX_WORDS
from openvse.tokenization.vocabulary import UnknownWord, unknown_line
from tests.naming import names

CAPTIONS = ["a dog runs", "a dog sits", "the cat sits"]


def bigru(**options: object) -> BiGRU:
    return BiGRU(**({"embed_dim": 4, "captions": CAPTIONS, "min_count": 2, "word_dim": 3} | options))


def test_a_vocabulary_counts_what_it_leaves_out() -> None:
    coverage = bigru().coverage(CAPTIONS)
    assert (coverage.num_tokens, coverage.num_unknown) == (9, 3)
    assert (coverage.num_words, coverage.num_known, coverage.min_count) == (6, 3, 2)
    assert names(coverage.describe(), 3, 6, "min_count 2", "33.3 %")
    assert names(bigru(min_count=1).coverage(CAPTIONS).describe(), 6, "min_count 1")


def test_a_vocabulary_names_unknown_words_once() -> None:
    words = bigru().unknown_words("The dog sits, the zebra sits: a Zebra!")
    assert words == [UnknownWord("the"), UnknownWord("zebra")]
    assert bigru(max_words=1).unknown_words("a zebra") == []


@pytest.mark.medium
def test_long_captions_are_cut_and_counted(bert_checkpoint: str) -> None:
    long = " ".join(["a dog runs"] * 7000)
    encoder = bigru(min_count=1)
    assert [len(ids) for ids in encoder.tokenize([long, "a dog"])] == [MAX_WORDS + 2, 4]
    assert names(encoder.coverage([long, "a dog runs"]).describe(), 3, "min_count 1", 1, 2, 256, "max_words")
    assert len(bigru(max_words=None).tokenize([long])[0]) == 21002
    pieces = TransformersText(embed_dim=4, model=bert_checkpoint, max_length=8)
    cut = pieces.coverage(["a a a a a a", "a " * 7])
    assert cut.num_cut == 1 and names(cut.describe(), 1, 2, 8, "max_length")


def test_a_tokenizer_counts_pieces_that_it_lacks(bert_checkpoint: str) -> None:
    encoder = TransformersText(embed_dim=4, model=bert_checkpoint)
    assert encoder.unknown_words("a dog 犬 犬 runs") == [UnknownWord("犬")]
    assert encoder.unknown_words("a dog") == []
    assert encoder.coverage(["a dog"]).num_unknown == 0
    coverage = encoder.coverage(["a 犬", "a"])
    assert (coverage.num_tokens, coverage.num_unknown) == (3, 1)
    assert names(coverage.describe("question"), "33.3 %", "question")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], []),
        ([UnknownWord("zebra"), UnknownWord("zebra")], ["zebra"]),
        ([UnknownWord("elefant", "elephant"), UnknownWord("zebra")], ["elefant", "elephant", "zebra"]),
        ([UnknownWord(f"w{number}") for number in range(25)], [f"w{number}" for number in range(20)]),
    ],
)
def test_the_line_names_each_word_once_and_20_at_most(words: list[UnknownWord], named: list[str]) -> None:
    assert re.findall("'(.*?)'", unknown_line(words)) == named
