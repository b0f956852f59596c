"""A score that is computed for each pair, after the image and the text have attended to each other."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from openvse.fusion import Fusion, ScoreAttentionFusion, score_listed, score_pairs
from openvse.registry import Maker
from openvse.similarities.base import Similarity
from openvse.types import EmbeddingSet


class Fused(Similarity):
    """The mean cosine of the vectors to which a fusion reduces an image and a text (score attention, section IV-B).

    It reads sets of tokens, so both aggregators are ``tokens``. An index cannot serve it: an indexable model proposes
    items, and this one reranks them (``openvse search --rerank``).

    Args:
        fusion: the fusion that computes the vectors of a pair.
    """

    indexable: ClassVar[bool] = False
    is_cosine: ClassVar[bool] = False
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(self, *, embed_dim: int, fusion: Maker[Fusion] = ScoreAttentionFusion) -> None:
        super().__init__()
        self.fusion = fusion(embed_dim=embed_dim)

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs; see ``score_pairs`` for time and memory."""
        return score_pairs(self.fusion, *self.fusion.prepare(images, texts))

    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        """Score some pairs; each image and each text is prepared once."""
        return score_listed(self.fusion, *self.fusion.prepare(images, texts), rows, columns)
