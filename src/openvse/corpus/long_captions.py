"""Captions that are far longer than a sentence, such as a page that was pasted by mistake."""

from __future__ import annotations

from collections.abc import Sequence

LONG_CAPTION = 256
"""Words, as white space separates them; the captions of the published data sets are shorter than half of this."""


def long_captions(captions: Sequence[str]) -> str:
    """Return a line that counts long captions, "" if there are none."""
    lengths = [len(caption.split()) for caption in captions]
    longest = max(lengths, default=0)
    if longest <= LONG_CAPTION:
        return ""
    count = sum(length > LONG_CAPTION for length in lengths)
    return (
        f"{count:,} caption(s) have more than {LONG_CAPTION} words (the longest {longest:,}): text encoders read the "
        f"beginning alone (bigru: max_words, transformers_text: max_length)"
    )
