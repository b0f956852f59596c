"""The cleaning of a sentence before a pretrained tokenizer reads it, as in the model's training."""

from __future__ import annotations

import html
from typing import Literal, TypeAlias

from openvse.errors import ModelError
from openvse.files import whole_characters

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
