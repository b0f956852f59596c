"""The content of a data set: images, sentences or questions, and their relevance."""

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.facts import Facts, Form, Piece

__all__ = ["Corpus", "Facts", "Form", "Piece", "Record", "build_corpus"]
