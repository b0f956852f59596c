"""The contents of a data set in numbers, as in PVSE's Table 1."""

from __future__ import annotations

from collections.abc import Sequence

from openvse.corpus import Corpus
from openvse.output.table import Cell, Table
from openvse.tokenization.word_splitters import split_words

COLUMNS = ("split", "items", "sentences", "per item", "words", "per sentence", "longest", "vocabulary")


def data_statistics(corpus: Corpus) -> Table:
    """Count a data set: one row for each split, and one for all.

    Items are images, videos or other clips. Words are the runs of letters and digits of a sentence in lower case, and
    the vocabulary is the number of different ones, however rare. A tokenizer that keeps punctuation counts more.
    The sentences of a set of questions are its questions.
    """
    labels = corpus.split_labels()
    there = [name for name in ("train", "validation", "test") if name in labels]
    rows = [_row(name, *_counted(corpus.split(name))) for name in there]
    return Table(COLUMNS, [*rows, _row("all", *_counted(corpus))], ruled=frozenset({len(rows)}))


def _counted(corpus: Corpus) -> tuple[int, int, Sequence[Sequence[str]]]:
    return len(corpus), len(corpus.relevance.texts), [split_words(caption) for caption in corpus.captions]


def _row(name: str, items: int, pairs: int, sentences: Sequence[Sequence[str]]) -> list[Cell]:
    lengths = [len(words) for words in sentences]
    per_item, per_sentence = pairs / max(items, 1), sum(lengths) / max(len(sentences), 1)
    known = {word for words in sentences for word in words}
    return [
        name,
        items,
        len(sentences),
        per_item,
        sum(lengths),
        per_sentence,
        max(lengths, default=0),
        len(known),
    ]
