"""Batches of a corpus: images from files or from a feature store, tokens, and the positive pairs."""

from __future__ import annotations

from openvse.batches.in_order import PlacedInputs, as_it_is, image_batches, ready_for, text_batches
from openvse.batches.loaders import (
    FeatureImages,
    ImageLoader,
    PixelImages,
    RandomView,
    StoredTexts,
    TextLoader,
    TokenTable,
    image_loader,
    own_features,
    text_loader,
    with_features,
)
from openvse.batches.pairs import BatchKey, EpochBatches, PairDataset, PairsOfImages

__all__ = [
    "BatchKey",
    "EpochBatches",
    "FeatureImages",
    "ImageLoader",
    "PairDataset",
    "PairsOfImages",
    "PixelImages",
    "PlacedInputs",
    "RandomView",
    "StoredTexts",
    "TextLoader",
    "TokenTable",
    "as_it_is",
    "image_batches",
    "image_loader",
    "own_features",
    "ready_for",
    "text_batches",
    "text_loader",
    "with_features",
]
