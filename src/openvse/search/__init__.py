"""Search: find the images of an index that fit a sentence or resemble an image."""

from __future__ import annotations

from openvse.search.contact_sheet import captions_beside, contact_sheet
from openvse.search.duplicates import find_duplicates
from openvse.search.engine import SearchEngine
from openvse.search.exact import ExactSearch
from openvse.search.hits import Answer, Hit, Probabilities
from openvse.search.proposing import measured_recall
from openvse.search.query import Page, Query

__all__ = [
    "Answer",
    "ExactSearch",
    "Hit",
    "Page",
    "Probabilities",
    "Query",
    "SearchEngine",
    "captions_beside",
    "contact_sheet",
    "find_duplicates",
    "measured_recall",
]
