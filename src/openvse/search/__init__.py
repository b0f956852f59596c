"""Search: make an index of a folder of images, and find the images that fit a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.index.build import IndexReport, build_index
from openvse.index.conditions import Condition, parse_condition
from openvse.index.index import Index
from openvse.index.maintenance import compact_index, forget_root, remove_items
from openvse.index.manifest import FoundModel, Item, find_model, place_of
from openvse.lazy import lazy_names
from openvse.search.array_engine import ArrayBackend, ArrayEngine
from openvse.search.backend import Engine, FilteringBackend, VectorBackend
from openvse.search.captions import captions_beside
from openvse.search.contact_sheet import contact_sheet
from openvse.search.engine import SearchEngine
from openvse.search.hits import Chances, Hit
from openvse.search.query import Query
from openvse.stores.engine_choice import ENGINES, EngineChoice

if TYPE_CHECKING:
    from openvse.index.stored import StoredFeatures, find_stored_features
    from openvse.search.duplicates import DuplicateGroup, duplicates_in_folder, duplicates_in_index
    from openvse.search.engines import EngineReport, choose_engine, measured_recall, update_engine
    from openvse.search.exact import ExactBackend
    from openvse.search.rerank import HitReranker

__all__ = [
    "ENGINES",
    "ArrayBackend",
    "ArrayEngine",
    "Chances",
    "Condition",
    "DuplicateGroup",
    "Engine",
    "EngineChoice",
    "EngineReport",
    "ExactBackend",
    "FilteringBackend",
    "FoundModel",
    "Hit",
    "HitReranker",
    "Index",
    "IndexReport",
    "Item",
    "Query",
    "SearchEngine",
    "StoredFeatures",
    "VectorBackend",
    "build_index",
    "captions_beside",
    "choose_engine",
    "compact_index",
    "contact_sheet",
    "duplicates_in_folder",
    "duplicates_in_index",
    "find_model",
    "find_stored_features",
    "forget_root",
    "measured_recall",
    "parse_condition",
    "place_of",
    "remove_items",
    "update_engine",
]

# These need PyTorch; the index and the engine do not, since an exported model is searched with arrays.
__getattr__, _names = lazy_names(
    "openvse.search",
    {
        "DuplicateGroup": "openvse.search.duplicates",
        "EngineReport": "openvse.search.engines",
        "ExactBackend": "openvse.search.exact",
        "HitReranker": "openvse.search.rerank",
        "StoredFeatures": "openvse.index.stored",
        "choose_engine": "openvse.search.engines",
        "duplicates_in_folder": "openvse.search.duplicates",
        "duplicates_in_index": "openvse.search.duplicates",
        "measured_recall": "openvse.search.engines",
        "find_stored_features": "openvse.index.stored",
        "update_engine": "openvse.search.engines",
    },
)


def __dir__() -> list[str]:
    """Return the public names, including those that have not been imported yet."""
    return __all__
