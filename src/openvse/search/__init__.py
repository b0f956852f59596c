"""Search: find the images of an index that fit a sentence or resemble an image; the index and its engines beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.index.build import IndexReport, build_index
from openvse.index.conditions import Condition, parse_condition
from openvse.index.index import Index
from openvse.index.maintenance import compact_index, forget_root, remove_items
from openvse.index.manifest import FoundModel, Item, find_model, place_of
from openvse.lazy import lazy_names
from openvse.search.contact_sheet import captions_beside, contact_sheet
from openvse.search.engine import SearchEngine
from openvse.search.exact import ExactSearch, measured_recall
from openvse.search.hits import Answer, Hit, Probabilities
from openvse.search.query import Page, Query
from openvse.stores.choice import EngineChoice, engine_names, read_address
from openvse.stores.following import EngineReport, choose_engine, update_engine

if TYPE_CHECKING:
    from openvse.search.duplicates import DuplicateGroup, duplicates_in_folder, duplicates_in_index
    from openvse.search.rerank import HitReranker
    from openvse.search.stored_features import StoredFeatures, find_stored_features

__all__ = [
    "Answer",
    "Condition",
    "DuplicateGroup",
    "EngineChoice",
    "EngineReport",
    "ExactSearch",
    "FoundModel",
    "Hit",
    "HitReranker",
    "Index",
    "IndexReport",
    "Item",
    "Page",
    "Probabilities",
    "Query",
    "SearchEngine",
    "StoredFeatures",
    "build_index",
    "captions_beside",
    "choose_engine",
    "compact_index",
    "contact_sheet",
    "duplicates_in_folder",
    "duplicates_in_index",
    "engine_names",
    "find_model",
    "find_stored_features",
    "forget_root",
    "measured_recall",
    "parse_condition",
    "place_of",
    "read_address",
    "remove_items",
    "update_engine",
]

# These need PyTorch; the index and the engine do not, since an exported model is searched with arrays.
__getattr__, _names = lazy_names(
    "openvse.search",
    {
        "DuplicateGroup": "openvse.search.duplicates",
        "HitReranker": "openvse.search.rerank",
        "StoredFeatures": "openvse.search.stored_features",
        "duplicates_in_folder": "openvse.search.duplicates",
        "duplicates_in_index": "openvse.search.duplicates",
        "find_stored_features": "openvse.search.stored_features",
    },
)


def __dir__() -> list[str]:
    """Return the public names, including those that have not been imported yet."""
    return __all__
