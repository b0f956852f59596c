"""Data sets by name: the loader of each, and the facts of its published copy."""

from openvse.datasets.opening import open_corpus, open_questions
from openvse.datasets.registry import DATASETS

__all__ = ["DATASETS", "open_corpus", "open_questions"]
