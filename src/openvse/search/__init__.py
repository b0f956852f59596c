"""Search: a folder of images -> an index -> the images that fit a sentence."""

from __future__ import annotations

from openvse.search.backend import ExactBackend, VectorBackend
from openvse.search.captions import captions_beside
from openvse.search.contact_sheet import contact_sheet
from openvse.search.engine import Hit, SearchEngine, at_least, require_curve
from openvse.search.index import Index, Item
from openvse.search.indexing import IndexProgress, IndexReport, build_index
from openvse.search.model_place import FoundModel, find_model, place_of
from openvse.search.rerank import HitReranker
from openvse.search.stored import StoredImages, stored_images

__all__ = [
    "ExactBackend",
    "FoundModel",
    "Hit",
    "HitReranker",
    "Index",
    "IndexProgress",
    "IndexReport",
    "Item",
    "SearchEngine",
    "StoredImages",
    "VectorBackend",
    "at_least",
    "build_index",
    "captions_beside",
    "contact_sheet",
    "find_model",
    "place_of",
    "require_curve",
    "stored_images",
]
