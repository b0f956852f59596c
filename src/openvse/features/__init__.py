"""Local features on disk: the store, the code that fills it, and arrays that come with a data set."""

from __future__ import annotations

from openvse.features.entries import FeatureEntry, Local
from openvse.features.extract import ExtractionReport, extract_features, extract_text_features, text_id
from openvse.features.importing import FEATURE_FILES, ImportReport, import_features
from openvse.features.layout import StoreDtype
from openvse.features.store import (
    FeatureStore,
    has_store_of,
    open_fitting,
    open_store,
    open_token_states,
)
from openvse.features.stored_features import StoredFeatures, find_stored_features
from openvse.features.writer import FeatureStoreWriter

__all__ = [
    "FEATURE_FILES",
    "ExtractionReport",
    "FeatureEntry",
    "FeatureStore",
    "FeatureStoreWriter",
    "ImportReport",
    "Local",
    "StoreDtype",
    "StoredFeatures",
    "extract_features",
    "extract_text_features",
    "find_stored_features",
    "has_store_of",
    "import_features",
    "open_fitting",
    "open_store",
    "open_token_states",
    "text_id",
]
