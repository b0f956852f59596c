"""Score attention within one modality."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from openvse.aggregators.base import Aggregator, require_same_width
from openvse.layers.attention import Attention, AttentionScores
from openvse.types import EmbeddingSet, Features


class ScoreAttention(Aggregator):
    """``v_k = sum_n S_kn(X, X) x_n`` after self-attention: the paper's reduction with one modality on both sides.

    The paper takes keys and values from the other modality (similarity ``fused``), whose scores an index cannot serve;
    within one modality the result depends only on the item. With k > 1 reductions, each one is an embedding.

    Args:
        num_heads: the number of heads of both attentions.
        num_vectors: k, the number of reductions.

    Raises:
        RecipeError: L differs from D, L is not a multiple of the number of heads, or k is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, num_heads: int = 8, num_vectors: int = 1) -> None:
        super().__init__()
        require_same_width("score_attention", input_dim, embed_dim)
        self.attention = Attention(embed_dim, num_heads)
        self.scores = AttentionScores(embed_dim, num_heads, num_vectors)

    def forward(self, features: Features) -> EmbeddingSet:
        """Let the real elements attend to each other, score them, and sum them weighted by their scores."""
        local = self._read(features)
        vectors = self.scores(local, features.mask, local, features.mask) @ local
        return EmbeddingSet.full(vectors)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the scores with which the elements are summed; see ``Attends``."""
        local, mask = self._read(features), features.mask
        scores: Tensor = self.scores(local, mask, local, mask)
        return scores

    def _read(self, features: Features) -> Float[Tensor, "B N D"]:
        """Let the real elements attend to each other."""
        mask = features.mask
        return self.attention.read_itself(features.local.masked_fill(~mask.unsqueeze(-1), 0.0), mask)
