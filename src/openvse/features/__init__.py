"""Local features on disk: the store, the code that fills it, and arrays that come with a data set."""

from openvse.features.entries import FEATURE_FILES, FeatureEntry, Local, import_features

__all__ = ["FEATURE_FILES", "FeatureEntry", "Local", "import_features"]
