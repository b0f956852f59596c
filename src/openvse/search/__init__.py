"""Search: a folder of images -> an index -> the images that fit a sentence."""

from __future__ import annotations

from openvse.search.backend import ExactBackend, VectorBackend
from openvse.search.captions import captions_beside
from openvse.search.contact_sheet import contact_sheet
from openvse.search.engine import Hit, SearchEngine
from openvse.search.index import Index, Item
from openvse.search.indexing import IndexProgress, IndexReport, build_index
from openvse.search.rerank import HitReranker

__all__ = [
    "ExactBackend",
    "Hit",
    "HitReranker",
    "Index",
    "IndexProgress",
    "IndexReport",
    "Item",
    "SearchEngine",
    "VectorBackend",
    "build_index",
    "captions_beside",
    "contact_sheet",
]
