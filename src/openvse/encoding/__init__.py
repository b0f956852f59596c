"""Embeddings of images or sentences as plain files, for any other program: NumPy or Parquet, in one process or many."""

from __future__ import annotations

from openvse.encoding.listing import Listing, Record, list_records
from openvse.encoding.run import EncodingProgress, EncodingReport, encode

__all__ = ["EncodingProgress", "EncodingReport", "Listing", "Record", "encode", "list_records"]
