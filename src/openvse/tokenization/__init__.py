"""From sentences to words and pieces: vocabularies, word splitters, cleaning, and unknown words."""

from __future__ import annotations

from openvse.tokenization.vocabulary import Coverage, UnknownWord, Vocabulary, unknown_line
from openvse.tokenization.word_splitters import WORD_SPLITTERS, WordSplitter

__all__ = [
    "WORD_SPLITTERS",
    "Coverage",
    "UnknownWord",
    "Vocabulary",
    "WordSplitter",
    "unknown_line",
]
