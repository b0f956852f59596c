"""The Boltzmann operator (Asadi and Littman, ICML 2017) over the elements of a set."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators import Pooling


class Boltzmann(Pooling):
    """Weigh the elements by their own size, in each dimension.

    ``v = sum_n softmax_n(x_n / temperature) x_n``
    """

    def __init__(self, *, input_dim: int, embed_dim: int, temperature: float = 1) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.temperature = temperature

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Tensor:
        """Pool the real elements; the padding may hold anything, also NaN."""
        padding = ~mask.unsqueeze(-1)
        scaled = (local / self.temperature).masked_fill(padding, -torch.inf)
        return (scaled.softmax(dim=1) * local.masked_fill(padding, 0.0)).sum(dim=1)
