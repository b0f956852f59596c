"""The index of a folder of images, or of a file of sentences, on disk: building, following, repair and reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.indexing.build import IndexReport, build_index
    from openvse.indexing.conditions import Condition, parse_condition
    from openvse.indexing.index import Index
    from openvse.indexing.maintenance import forget_root
    from openvse.indexing.manifest import Item, find_model, place_of

__all__ = [
    "Condition",
    "Index",
    "IndexReport",
    "Item",
    "build_index",
    "find_model",
    "forget_root",
    "parse_condition",
    "place_of",
]

# A search reads an index, and does not load what makes one.
__getattr__, __dir__ = lazy_names(__name__)
