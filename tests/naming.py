"""What a message names: docs/compatibility.md promises no wording, so tests look for values, paths, keys and names."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def names(text: str, *parts: object) -> bool:
    """Return whether a text names these in this order, whatever words are between them."""
    return re.search(".*?".join(re.escape(str(each)) for each in parts), text, re.DOTALL) is not None


def refusal(error: type[BaseException], call: Callable[..., object], *given: object, **options: object) -> str:
    """Return what a call is refused with: an error of this class, in one line."""
    with pytest.raises(error) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
