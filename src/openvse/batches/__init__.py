"""Batches of a corpus: images from files or from a feature store, tokens, and the positive pairs."""

from openvse.batches.loaders import PixelImages, TokenTable
from openvse.batches.pairs import EpochBatches, PairDataset

__all__ = ["EpochBatches", "PairDataset", "PixelImages", "TokenTable"]
