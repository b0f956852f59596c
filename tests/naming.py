"""What a message names: docs/compatibility.md promises no wording, so tests look for values, paths, keys and names."""

from __future__ import annotations

import re


def names(text: str, *parts: object) -> bool:
    """Return whether a text names these in this order, whatever words are between them."""
    return re.search(".*?".join(re.escape(str(each)) for each in parts), text, re.DOTALL) is not None
