"""Batches with several embeddings an item, for the terms that look behind the scores."""

import torch
from torch import Tensor

from openvse.functional import normalize, set_max_scores
from openvse.types import EmbeddingSet, ScoredBatch


def embeddings(items: int, k: int, seed: int, width: int = 5) -> EmbeddingSet:
    """Random unit vectors with residuals and sources, in float64."""
    generator = torch.Generator().manual_seed(seed)
    vectors, residual = torch.randn(2, items, k, width, dtype=torch.float64, generator=generator)
    mask = torch.ones(items, k, dtype=torch.bool)
    return EmbeddingSet(normalize(vectors), mask, residual, source=vectors[:, 0].clone())


def scored(images: EmbeddingSet, texts: EmbeddingSet, positives: Tensor | None = None) -> ScoredBatch:
    """Score with set_max; without positives, the i-th text belongs to the i-th image, modulo their number."""
    if positives is None:
        owners = torch.arange(len(texts)) % len(images)
        positives = owners == torch.arange(len(images)).unsqueeze(1)
    return ScoredBatch(set_max_scores(images, texts), positives, images, texts)


def random_set_batch(images: int, texts: int, views: int, seed: int, text_k: int = 1) -> ScoredBatch:
    return scored(embeddings(images, views, seed), embeddings(texts, text_k, seed + 1000))
