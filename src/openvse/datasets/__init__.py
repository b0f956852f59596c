"""Data sets by name: the loader of each, and the facts of its published copy."""

from openvse.datasets.opening import open_corpus
from openvse.datasets.registry import DATASETS
from openvse.lazy import lazy_names

__all__ = ["DATASETS", "open_corpus"]
__getattr__, __dir__ = lazy_names(__name__)  # what packages add
