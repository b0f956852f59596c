"""Feature stores: local features of images, computed once, read from disk a batch at a time."""

from __future__ import annotations

from openvse.features_store.choose import open_fitting
from openvse.features_store.layout import StoreDtype
from openvse.features_store.store import FeatureStore
from openvse.features_store.writer import FeatureStoreWriter

__all__ = ["FeatureStore", "FeatureStoreWriter", "StoreDtype", "open_fitting"]
