"""Modules for the library ``sentence-transformers``, which loads, trains and saves them."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.sentences.modules import SentencePooling

__all__ = ["SentencePooling"]

# The library takes seconds to import, and is an extra.
__getattr__, __dir__ = lazy_names(__name__)
