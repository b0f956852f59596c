"""Data sets by name: the loader of each, and the facts of its published copy."""

from openvse.datasets.registry import DATASETS, open_corpus
from openvse.lazy import lazy_names

__all__ = ["DATASETS", "open_corpus"]
__getattr__, __dir__ = lazy_names(__name__)  # what packages add
