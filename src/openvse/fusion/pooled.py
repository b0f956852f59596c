"""Any aggregator in place of score attention: the paper's baselines."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators import Aggregator, Mean
from openvse.errors import RecipeError
from openvse.fusion.base import Fusion, Reduced
from openvse.registry import Maker
from openvse.types import Features


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
