"""Search: find the images of an index that fit a sentence or resemble an image."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.indexing import Index, build_index
    from openvse.search.duplicates import find_duplicates
    from openvse.search.engine import SearchEngine
    from openvse.search.hits import Answer, Hit
    from openvse.search.query import Page, Query
    from openvse.search.sheets import contact_sheet

__all__ = ["Answer", "Hit", "Index", "Page", "Query", "SearchEngine", "build_index", "contact_sheet", "find_duplicates"]

# The help of the command line needs the settings of a search alone, and a search nothing that makes an index.
__getattr__, __dir__ = lazy_names(__name__)
