"""Embeddings of images or sentences as plain files, for any other program: NumPy or Parquet, in one process or many."""

from __future__ import annotations

from openvse.encoding.listing import EncodingRecord, RecordList, list_records
from openvse.encoding.run import EncodingReport, encode

__all__ = ["EncodingRecord", "EncodingReport", "RecordList", "encode", "list_records"]
