"""Captions that are much longer than a sentence, such as a page that was pasted by mistake."""

from __future__ import annotations

from collections.abc import Sequence

LONG_CAPTION = 256
"""The number of words, separated by white space; captions of published data sets have less than half of it."""


def long_captions(captions: Sequence[str]) -> str:
    """Return a line that counts long captions, "" if there are none."""
    lengths = [len(caption.split()) for caption in captions]
    longest = max(lengths, default=0)
    if longest <= LONG_CAPTION:
        return ""
    count = sum(length > LONG_CAPTION for length in lengths)
    return (
        f"{count:,} caption(s) have more than {LONG_CAPTION} words (the longest {longest:,}): text encoders read only "
        f"the beginning (bigru: max_words, transformers_text: max_length)"
    )
