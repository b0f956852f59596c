"""The reduction that gives the method its name."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.fusion.base import Fusion, Reduced
from openvse.layers.attention import AttentionScores


class ScoreAttentionFusion(Fusion):
    """``y_k = sum_n S_kn(X, Z) x_n``: X attends to Z for its weights, and the reverse (eq. 3 and 4).

    Args:
        num_vectors: k, the number of parallel reductions.
    """

    def __init__(
        self, *, embed_dim: int, num_heads: int = 8, num_vectors: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, class_token=False)
        self.image_scores = AttentionScores(embed_dim, num_heads, num_vectors)
        self.text_scores = AttentionScores(embed_dim, num_heads, num_vectors)

    def reduce(
        self,
        x: Float[Tensor, "P N D"],
        x_mask: Bool[Tensor, "P N"],
        z: Float[Tensor, "P M D"],
        z_mask: Bool[Tensor, "P M"],
    ) -> Reduced:
        # The order of the sides is fixed: in another order, the sum of the gradients would differ in its last bits.
        of_x = self.image_scores(x, x_mask, z, z_mask)
        image = of_x @ x
        of_z = self.text_scores(z, z_mask, x, x_mask)
        return Reduced(image, of_z @ z, (of_x, of_z))
