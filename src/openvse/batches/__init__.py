"""Batches of a corpus: images from files or from a feature store, tokens, and the positive pairs."""

from openvse.batches.pairs import EpochBatches, PairDataset, PixelImages, TokenTable

__all__ = ["EpochBatches", "PairDataset", "PixelImages", "TokenTable"]
