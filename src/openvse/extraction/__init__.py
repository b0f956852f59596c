"""Into a feature store, once: pictures through an encoder, or features that other tools made."""

from __future__ import annotations

from openvse.extraction.convert import ConversionReport, convert_features
from openvse.extraction.entries import Entry, Local
from openvse.extraction.extract import ExtractionProgress, ExtractionReport, extract_features
from openvse.extraction.feature_files import FEATURE_FILES

__all__ = [
    "FEATURE_FILES",
    "ConversionReport",
    "Entry",
    "ExtractionProgress",
    "ExtractionReport",
    "Local",
    "convert_features",
    "extract_features",
]
