"""Sentences for a pretrained tokenizer: their cleaning, as in the model's training, and the words that it lacks.

A tokenizer of word pieces does not know a word with a missing piece, or one that it spells out.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from openvse.errors import ModelError
from openvse.files import whole_characters
from openvse.tokenization.vocabulary import UnknownWord

Cleaning: TypeAlias = Literal["none", "lower", "open_clip"]
"""The name of a cleaning. See ``cleaned``."""


def cleaned(sentence: str, cleaning: Cleaning) -> str:
    r"""Return a sentence in the form for a tokenizer. Halves of surrogate pairs become U+FFFD.

    ``none`` changes nothing else. ``lower`` lowers each letter, as in the training of SigLIP 2 (``Siglip2Tokenizer`` of
    transformers). ``open_clip`` is OpenCLIP's cleaning: it mends encodings, curly quotation marks, ligatures and
    full-width letters (``ftfy``), resolves references of HTML twice, makes all white space one space, and lowers all
    letters.

    Example:
        >>> cleaned("Salt &amp;amp; Pepper", "open_clip")
        'salt & pepper'
    """
    sentence = whole_characters(sentence)
    if cleaning == "none":
        return sentence
    if cleaning == "lower":
        return "".join(map(str.lower, sentence))  # one by one: a final sigma stays like the others
    return " ".join(html.unescape(html.unescape(_mended(sentence))).split()).lower()


def _mended(sentence: str) -> str:
    """Return a sentence repaired by ``ftfy``. Printable ASCII without references needs no repair."""
    if sentence.isascii() and sentence.isprintable() and "&" not in sentence:
        return sentence
    try:
        from ftfy import fix_text
    except ImportError as error:
        raise ModelError(
            "the sentences of this model need OpenCLIP's cleaning, but ftfy is not installed: pip install ftfy"
        ) from error
    mended: str = fix_text(sentence)
    return mended


Encode: TypeAlias = Callable[[Sequence[str]], Sequence[tuple[Sequence[int], Sequence[str]]]]
"""A function that cuts words: the ids of the pieces of each word, and the pieces, without special tokens."""

_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
_SPACE = "▁Ġ"  # how SentencePiece and byte-level tokenizers write the space before a word


def unknown_words(sentence: str, encode: Encode, unknown: int | None) -> list[UnknownWord]:
    """Return the words of a sentence, separated at white space, that a tokenizer lacks or spells out, each once.

    A tokenizer spells out a word of a script that it has hardly learned: it cuts the word into single letters, or each
    letter into bytes. A model for English therefore reads Arabic, but knows its words as little as a missing word.
    ``unknown`` is the id of a piece that the tokenizer lacks, if it has one.
    """
    words = list(dict.fromkeys(sentence.split()))
    texts = [*words, *filter(None, map(_foreign, words))]
    pieces = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    return [
        UnknownWord(word)
        for word in words
        if unknown in pieces[word][0] or _is_spelled_out(_foreign(word), pieces.get(_foreign(word)))
    ]


def count_spelled(sentences: Sequence[str], encode: Encode, unknown: int | None) -> int:
    """Return the number of pieces of all words in some sentences that a tokenizer has but that spell a word out."""
    words = Counter(word for each in sentences if not each.isascii() for word in map(_foreign, each.split()))
    texts = [word for word in words if word]
    cut = zip(texts, encode(texts), strict=True) if texts else ()
    return sum(
        words[word] * len(pieces[0])
        for word, pieces in cut
        if unknown not in pieces[0] and _is_spelled_out(word, pieces)
    )


def _foreign(word: str) -> str:
    """Return a word without the punctuation around it if it has letters, and none of them is of ASCII, otherwise ""."""
    core = "" if word.isascii() else _CORE.search(word)
    is_foreign = core and any(map(str.isalpha, core[0])) and not re.search("[A-Za-z]", core[0])
    return core[0] if core and is_foreign else ""


def _is_spelled_out(word: str, pieces: tuple[Sequence[int], Sequence[str]] | None) -> bool:
    if not word or pieces is None:
        return False
    letters = sum(
        unicodedata.category(each)[0] in "LN" or unicodedata.category(each) == "Mc" for each in word
    )
    count = sum(bool(piece.strip(_SPACE)) for piece in pieces[1])
    if count > letters:
        return True  # into parts of letters
    # A Chinese character is a word, and a letter alone may be one.
    is_chinese = any(unicodedata.name(each, "").startswith("CJK ") for each in word)
    return not is_chinese and sum(map(str.isalpha, word)) > 1 and 2 * letters < 3 * count
