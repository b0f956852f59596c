"""Search: find the images of an index that fit a sentence or resemble an image."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names
from openvse.search.contact_sheet import contact_sheet
from openvse.search.engine import SearchEngine
from openvse.search.hits import Answer, Hit
from openvse.search.query import Page, Query

if TYPE_CHECKING:
    from openvse.indexing import Index, build_index
    from openvse.search.duplicates import find_duplicates

__all__ = [
    "Answer",
    "Hit",
    "Index",
    "Page",
    "Query",
    "SearchEngine",
    "build_index",
    "contact_sheet",
    "find_duplicates",
]

# A search needs nothing that makes an index or groups of images.
__getattr__, __dir__ = lazy_names(__name__)
