"""A corpus through a model: each image and each caption once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from openvse.data import Corpus, PlacedInputs, image_batches, image_loader, text_batches, with_features
from openvse.model import TwoTower, embed
from openvse.types import EmbeddingSet, FeatureSource


@dataclass(frozen=True)
class EmbeddedCorpus:
    """The embeddings of a corpus; ``corpus`` has lost the images that could not be read, and their texts."""

    images: EmbeddingSet
    texts: EmbeddingSet
    corpus: Corpus


def embed_corpus(
    model: TwoTower, corpus: Corpus, features: FeatureSource | None = None, *, batch_size: int = 128
) -> EmbeddedCorpus:
    """Embed every image and caption of a corpus.

    Args:
        model: used in evaluation mode and left in the mode it was in.
        corpus: what to embed.
        features: stored local features; without them the pictures are decoded.
        batch_size: items at a time.

    Raises:
        DataError: not one image could be read.
        StoreError: the store lacks an image.
    """
    corpus = with_features(corpus, features)
    kept: list[np.ndarray] = []

    def images() -> Iterator[PlacedInputs]:
        for positions, inputs in image_batches(
            image_loader(model.image.encoder, corpus, features), batch_size
        ):
            kept.append(positions)
            yield positions, inputs

    embedded = embed(model.image, images(), model.device)
    readable = np.sort(np.concatenate(kept))
    corpus = corpus if len(readable) == len(corpus) else corpus.select(readable)
    tokens = model.text.encoder.tokenize(corpus.captions)
    return EmbeddedCorpus(embedded, embed(model.text, text_batches(tokens, batch_size), model.device), corpus)
