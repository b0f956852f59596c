"""Extraction: pictures -> a feature store, once, so that training need not run the backbone."""

from __future__ import annotations

from openvse.extraction.extract import ExtractionProgress, ExtractionReport, extract_features

__all__ = ["ExtractionProgress", "ExtractionReport", "extract_features"]
