"""Local features on disk: the store, the code that fills it, and arrays that come with a data set."""

from __future__ import annotations

from openvse.features.choose import open_fitting, open_store, open_token_states
from openvse.features.entries import Entry, Local
from openvse.features.extract import ExtractionReport, extract_features, extract_text_features, text_id
from openvse.features.feature_files import FEATURE_FILES
from openvse.features.importing import ImportReport, import_features
from openvse.features.layout import StoreDtype
from openvse.features.store import FeatureStore
from openvse.features.writer import FeatureStoreWriter

__all__ = [
    "FEATURE_FILES",
    "Entry",
    "ExtractionReport",
    "FeatureStore",
    "FeatureStoreWriter",
    "ImportReport",
    "Local",
    "StoreDtype",
    "extract_features",
    "extract_text_features",
    "import_features",
    "open_fitting",
    "open_store",
    "open_token_states",
    "text_id",
]
