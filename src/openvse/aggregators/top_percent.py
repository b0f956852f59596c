"""Top-percent pooling."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.errors import RecipeError
from openvse.functional import masked_mean, position_mask, sort_descending


class TopPercent(Pooling):
    """Mean of the largest p % of the values of each dimension, ``k = ceil(N p / 100)`` (VSE-infinity, B.3, T-K%).

    Args:
        percent: p, from 1 to 100; 100 is mean pooling.

    Raises:
        RecipeError: p is out of range.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, percent: int = 50) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if not 1 <= percent <= 100:
            raise RecipeError(f"top_percent got percent = {percent}: it must be from 1 to 100")
        self.percent = percent

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Average the top of each dimension, rounded up to a whole element."""
        counts = (mask.sum(dim=1) * self.percent + 99) // 100
        return masked_mean(sort_descending(local, mask).transpose(1, 2), position_mask(counts, mask.shape[1]))
