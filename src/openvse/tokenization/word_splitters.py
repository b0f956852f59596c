"""Word splitters, which cut a caption into words. A recipe chooses one by name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from openvse.errors import ModelError, importing
from openvse.registry import Configured, Registry

Splitter: TypeAlias = Callable[[str], list[str]]

_WORD = re.compile(r"[^\W_]+")
# Abbreviations in NLTK's English model that occur in captions: their period does not end a sentence.
_TITLES = ("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "lt", "col", "gen", "vs")
_INITIALS = ("u.s", "u.k", "d.c", "n.y", "l.a", "a.m", "p.m")


def split_words(caption: str) -> list[str]:
    """Return the lower-case words of a caption: runs of letters and digits of any script. All else separates words.

    Examples:
        >>> split_words("A man's 2 T-shirts.")
        ['a', 'man', 's', '2', 't', 'shirts']
    """
    return _WORD.findall(caption.lower())


class WordSplitter(Configured, ABC):
    """Splits a caption into lower-case words."""

    @abstractmethod
    def __call__(self, caption: str) -> list[str]:
        """Return the words of a caption, in their order."""


class WordsSplitter(WordSplitter):
    """Splits a caption with ``split_words``."""

    def __call__(self, caption: str) -> list[str]:
        """Return the runs of letters and digits."""
        return split_words(caption)


class NLTKSplitter(WordSplitter):
    """Splits a caption with NLTK's ``word_tokenize``, the tokenizer of VSE++, PVSE and VSE-infinity.

    Punctuation is a token, and "man's" becomes "man", "'s".

    Deviation: NLTK finds sentences with a trained model, which is a separate download. Here its algorithm runs with a
    short list of abbreviations instead, so that a model gives the same tokens on every machine. Only a period inside a
    caption, after a rare abbreviation, can be read differently.
    ModelError: NLTK is not installed.
    """

    def __init__(self) -> None:
        with importing("tokenizer 'nltk' needs NLTK", "nltk", ModelError):
            from nltk.tokenize import NLTKWordTokenizer
            from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
        known = PunktParameters()
        known.abbrev_types = {*_TITLES, *_INITIALS}
        self._sentences, self._words = PunktSentenceTokenizer(known), NLTKWordTokenizer()

    def __call__(self, caption: str) -> list[str]:
        sentences = self._sentences.tokenize(caption.lower())
        return [word for sentence in sentences for word in self._words.tokenize(sentence)]


WORD_SPLITTERS: Registry[WordSplitter] = Registry("word splitter", {"nltk": NLTKSplitter, "words": WordsSplitter})
