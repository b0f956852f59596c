"""K-max pooling."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.errors import RecipeError
from openvse.functional import masked_k_max


class KMax(Pooling):
    """Mean of the k largest values of each dimension (VSE-infinity, section 3.2, K-MaxPool).

    For an item with fewer than k elements, the mean is over all of them.

    Args:
        k: the number of values to average, at least 1.

    Raises:
        RecipeError: k is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, k: int = 10) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if k < 1:
            raise RecipeError(f"k_max got k = {k}: it must be at least 1 (1 is max pooling)")
        self.k = k

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_k_max(local, mask, self.k)
