"""The content of a data set: images, sentences or questions, and their relevance."""

from __future__ import annotations

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.facts import Facts, Form, Piece

__all__ = ["Corpus", "Facts", "Form", "Piece", "Record", "build_corpus"]
