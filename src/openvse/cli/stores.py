"""Feature stores that a command names for a model."""

from __future__ import annotations

from pathlib import Path

from openvse.encoders import ImageEncoder
from openvse.features import open_fitting
from openvse.types import FeatureSource


def open_store(encoder: ImageEncoder, path: Path | None) -> FeatureSource | None:
    """Open the store, or the one of a folder of stores, that an encoder can read; None where none is named.

    Raises:
        StoreError: as ``open_fitting`` says.
    """
    if path is None:
        return None
    return open_fitting(path, fingerprint=encoder.fingerprint, dim=encoder.feature_dim)
