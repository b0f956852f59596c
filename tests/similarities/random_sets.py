"""Random sets of unit embeddings, some of which do not exist."""

import torch

from openvse.functional import normalize
from openvse.types import EmbeddingSet


def random_set(items: int, k: int, seed: int, dim: int = 5) -> EmbeddingSet:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(items, k, generator=generator) > 0.4
    mask[:, 0] = True
    return EmbeddingSet(normalize(torch.randn(items, k, dim, dtype=torch.float64, generator=generator)), mask)
