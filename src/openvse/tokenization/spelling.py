"""Finds the known word of which an unknown one is most likely a form or spelling: elephants, elefant, colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

# Each maps spellings of one sound to one form: those of British and American English, and common mistakes.
_ALIKE = (
    (re.compile("ph"), "f"),
    (re.compile("ck"), "k"),
    (re.compile("our(?=$|s$|ed$|ing$|ful|less$|it|y$)"), "or"),
    (re.compile("(?<=[a-z]{2}[bt])re(?=s?$)"), "er"),
    (re.compile("(?<=[a-z]{2}[ilnrt])is(?=e|ing|ation)"), "iz"),
    (re.compile("(?<=[gh])ray"), "rey"),
    (re.compile("ogue"), "og"),
    (re.compile("(?<=.)y"), "i"),
    (re.compile("ie|ei"), "i"),
    (re.compile(r"([^aeiou])\1"), r"\1"),
)
_SHORTEST_STEM = 3
_LONG, _VERY_LONG = 6, 8
_VOWEL = re.compile("[aeiouy]")
_HISSES = ("s", "x", "z", "ch", "sh", "o")  # words that take -es
_DOUBLES = re.compile(
    "[^aeiou]*[aeiou][^aeiouwxy]"
)  # a stem of one syllable that doubles its last letter before -ing


class Spellings:
    """Finds the known word nearest to an unknown one, or none if none is clearly near.

    It tries, in this order: the same word in another form (number, person, tense); the same sounds in another
    spelling; for words of six or more letters, one letter more, less or swapped with its neighbour; for words of
    eight or more, one letter replaced. The first letter never differs. If several words match, the first known word
    is taken, so the preferred ones come first.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._known: dict[str, int] = {}
        self._forms: dict[str, str] = {}
        self._sounds: dict[str, str] = {}
        self._misspelt: dict[str, str] = {}
        for position, word in enumerate(words):
            self._known[word] = position
        for word in self._known:
            for form in (word, *_stems(word)):
                self._forms.setdefault(form, word)
                self._sounds.setdefault(_sound(form), word)
            if _length(word) >= _LONG - 1:
                for shorter in _one_less(word):
                    self._misspelt.setdefault(shorter, word)

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - lives as long as the vocabulary
    def nearest(self, word: str) -> str | None:
        """Return the known word that a word is read as, or None if none is near enough."""
        if not word.isalpha() or len(word) < _SHORTEST_STEM:
            return None
        forms = (word, *_stems(word))
        of_form = [self._forms[form] for form in forms if form in self._forms]
        of_sound = [self._sounds[sound] for form in forms if (sound := _sound(form)) in self._sounds]
        for words in (of_form, of_sound, list(self._one_mistake(word))):
            fitting = [other for other in words if other[0] == word[0] and other.isalpha()]
            if fitting:
                return min(fitting, key=self._known.__getitem__)
        return None

    def _one_mistake(self, word: str) -> Iterator[str]:
        if _length(word) < _LONG:
            return
        if word in self._misspelt:  # a letter is missing
            yield self._misspelt[word]
        for place in range(1, len(word)):
            shorter = word[:place] + word[place + 1 :]
            if shorter in self._known:  # one letter too many
                yield shorter
            swapped = word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]
            if swapped in self._known:
                yield swapped
            other = self._misspelt.get(shorter, "")  # equal except for one letter, if it is at the same place
            if _length(word) >= _VERY_LONG and len(other) == len(word) and _differ(word, other) == 1:
                yield other


def _stems(word: str) -> list[str]:
    """Return the words of which an English word may be a form."""
    if word.endswith("s") and not word.endswith("ss"):
        stem = word.removesuffix("es")
        stems = [word[:-1], *([stem] if stem != word and stem.endswith(_HISSES) else [])]
        stems += [word[:-3] + "y"] if word.endswith("ies") else []
    elif word.endswith("ied"):
        stems = [word[:-3] + "y", word[:-1]]
    elif (stem := word.removesuffix("ing").removesuffix("ed")) != word:
        doubled = len(stem) > _SHORTEST_STEM and stem[-1] == stem[-2]
        stems = [stem[:-1] if doubled else stem + "e"]
        stems += [] if _DOUBLES.fullmatch(stem) else [stem]
    else:
        stems = []
    return [stem for stem in stems if len(stem) >= _SHORTEST_STEM and _VOWEL.search(stem)]


def _length(word: str) -> int:
    """Return the letters of a word without its ending, since words with the same ending differ in few letters."""
    return min(map(len, (word, *_stems(word))))


def _sound(word: str) -> str:
    for pattern, letters in _ALIKE:
        word = pattern.sub(letters, word)
    return word


def _one_less(word: str) -> Iterator[str]:
    """Yield the word without one of its letters, for each letter except the first."""
    return (word[:place] + word[place + 1 :] for place in range(1, len(word)))


def _differ(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
