"""Batches of a corpus: images from files or from a feature store, tokens, and the positive pairs."""

from __future__ import annotations

from openvse.batches.image_loaders import (
    ImageLoader,
    PixelImages,
    RandomView,
    StoredImages,
    image_loader,
    own_features,
    with_features,
)
from openvse.batches.images_first import ImageBatches, PairsOfImages
from openvse.batches.in_order import PlacedInputs, image_batches, text_batches
from openvse.batches.pairs import BatchKey, EpochBatches, PairDataset
from openvse.batches.texts import StoredTexts, TextLoader, text_loader
from openvse.batches.tokens import TokenTable

__all__ = [
    "BatchKey",
    "EpochBatches",
    "ImageBatches",
    "ImageLoader",
    "PairDataset",
    "PairsOfImages",
    "PixelImages",
    "PlacedInputs",
    "RandomView",
    "StoredImages",
    "StoredTexts",
    "TextLoader",
    "TokenTable",
    "image_batches",
    "image_loader",
    "own_features",
    "text_batches",
    "text_loader",
    "with_features",
]
