"""The largest cosine between the embeddings of two items."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.functional import best_of_pairs, set_max_scores
from openvse.similarities.base import Similarity
from openvse.types import EmbeddingSet


class SetMax(Similarity):
    """``s(V, T) = max_{k,l} cos(v_k, t_l)`` (PVSE section 3.2; MV-VSE eq. 6); the plain cosine at K = 1.

    Its exact candidates come from one inner-product search per embedding, fused by maximum.
    """

    indexable: ClassVar[bool] = True

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        return set_max_scores(images, texts)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        products = images.vectors[rows] @ texts.vectors[columns].transpose(1, 2)
        return best_of_pairs(products, images.mask[rows], texts.mask[columns])
