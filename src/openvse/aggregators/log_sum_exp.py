"""Log-sum-exp pooling."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.errors import RecipeError
from openvse.functional import MASKED


class LogSumExp(Pooling):
    """``v_d = t log sum_n e^(x_nd / t)``, a smooth maximum (score attention, section IV-C, with t = 1).

    Deviation: the paper's text sums "along the feature dimension", which would leave one number per element; here
    the sum is over the elements.

    Args:
        temperature: t; as it approaches 0, the result becomes the maximum.

    Raises:
        RecipeError: the temperature is not positive.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, temperature: float = 1.0) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if temperature <= 0:
            raise RecipeError(f"log_sum_exp got temperature = {temperature}: it must be above 0 (usual: 1)")
        self.temperature = temperature

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        scaled = (local / self.temperature).masked_fill(~mask.unsqueeze(-1), MASKED)
        return scaled.logsumexp(dim=1) * self.temperature
