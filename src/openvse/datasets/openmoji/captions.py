"""The texts of an emoji, and groups of emoji that are variants of one thing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"[\w\u2019'-]+")
_CLOCK = re.compile(r".*(o\u2019clock|-thirty)$")
# Man, woman and person forms of one activity share their drawing except for the hair.
_PEOPLE = frozenset(
    ("man", "men", "woman", "women", "person", "people", "adult", "boy", "girl", "child", "and")
)
_KEYWORDS_A_TEXT = 4
_MOST_KEYWORD_TEXTS = 3


def emoji_captions(name: str, aliases: Iterable[str], keywords: Sequence[str]) -> list[str]:
    """Compose the texts of an emoji so that no two of them have the same words.

    The first text is the CLDR name. The second is the first alias with different words, if there is one. The keywords
    that add a word to these two are divided among up to three texts, about four per text.

    Args:
        name: the CLDR short name, "face with tears of joy".
        aliases: other names, ":joy:" or ":face_with_tears_of_joy:".
        keywords: CLDR keywords.

    Returns:
        One to five texts.
    """
    texts = [name]
    plain = (alias.strip(":").replace("_", " ") for alias in aliases)
    texts += next(([alias] for alias in plain if _words(alias) != _words(name)), [])
    said = frozenset[str]().union(*map(_words, texts))
    new = [keyword for keyword in keywords if _words(keyword) - said]
    num_texts = min(_MOST_KEYWORD_TEXTS, -(-len(new) // _KEYWORDS_A_TEXT))
    # The keywords are in alphabetical order: dealing them out like cards mixes their meanings over the texts.
    return texts + [" ".join(new[first::num_texts]) for first in range(num_texts)]


def variant_group(name: str) -> str:
    """Return the name that variants of one thing share: without people and without the part after a colon.

    "man running", "woman running facing right" and "person running" are one group; so are all clock faces,
    every "keycap: 1" and every "flag: Japan". Such images hardly differ: a split must not cut a group.
    """
    if _CLOCK.match(name):
        return "clock"
    thing = name.casefold().partition(":")[0].removesuffix(" facing right")
    return " ".join(word for word in thing.split() if word not in _PEOPLE)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
