"""Data: corpora from files, and batches from corpora."""

from __future__ import annotations

from openvse.data.batches import PlacedInputs, image_batches, text_batches
from openvse.data.corpus import Corpus, Record, build_corpus
from openvse.data.datasets import DATASETS, open_corpus
from openvse.data.flickr_check import Finding, check_flickr
from openvse.data.image_loaders import (
    ImageLoader,
    PixelImages,
    RandomView,
    StoredImages,
    image_loader,
    with_features,
)
from openvse.data.pairs import BatchKey, EpochBatches, PairDataset

__all__ = [
    "DATASETS",
    "BatchKey",
    "Corpus",
    "EpochBatches",
    "Finding",
    "ImageLoader",
    "PairDataset",
    "PixelImages",
    "PlacedInputs",
    "RandomView",
    "Record",
    "StoredImages",
    "build_corpus",
    "check_flickr",
    "image_batches",
    "image_loader",
    "open_corpus",
    "text_batches",
    "with_features",
]
