"""Embeddings of images or sentences as plain files, for any other program: NumPy or Parquet, in one process or many."""

from openvse.encoding.run import encode

__all__ = ["encode"]
