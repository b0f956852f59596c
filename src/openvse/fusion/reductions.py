"""The reductions of tokens that have attended to each other: score attention, and any aggregator in its place."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators import Aggregator, Mean
from openvse.errors import RecipeError
from openvse.fusion.base import Fusion, Reduced
from openvse.layers.attention import AttentionScores
from openvse.registry import Maker
from openvse.types import Features


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


class Pooled(Fusion):
    """Each side is aggregated separately, after both have attended to each other (section IV-C).

    The paper compares ``mean``, ``max``, ``log_sum_exp``, ``conv1d``, and ``first_token`` with ``class_token: true``.

    Args:
        aggregator: the aggregator of each side; two copies are made.

    Raises:
        RecipeError: the aggregator needs a global vector, or does not yield a fixed number of embeddings.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        aggregator: Maker[Aggregator] = Mean,
        num_heads: int = 8,
        dropout: float = 0.1,
        class_token: bool = False,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, class_token=class_token)
        self.image_aggregator: Aggregator = aggregator(input_dim=embed_dim, embed_dim=embed_dim)
        self.text_aggregator: Aggregator = aggregator(input_dim=embed_dim, embed_dim=embed_dim)
        if self.image_aggregator.needs_pooled or not self.image_aggregator.fixed_k:
            raise RecipeError(
                f"pooled cannot reduce with {type(self.image_aggregator).__name__}: take an aggregator that needs no "
                f"global vector and makes the same number of embeddings of every item, such as mean or gpo"
            )

    def reduce(
        self,
        x: Float[Tensor, "P N D"],
        x_mask: Bool[Tensor, "P N"],
        z: Float[Tensor, "P M D"],
        z_mask: Bool[Tensor, "P M"],
    ) -> Reduced:
        return Reduced(
            self.image_aggregator(Features(x, x_mask)).vectors,
            self.text_aggregator(Features(z, z_mask)).vectors,
        )
