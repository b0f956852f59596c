"""One learned direction that says how much each element counts."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.functional import MASKED


class AttentionPool(Pooling):
    """``v = sum_n a_n x_n``, ``a = softmax_n(w . x_n)``: the global vectors of HGR (Chen et al., CVPR 2020).

    There is no bias, as it would shift all logits alike.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.weight = nn.Linear(input_dim, 1, bias=False)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        padding = ~mask.unsqueeze(-1)
        local = local.masked_fill(padding, 0.0)
        weights: Tensor = self.weight(local).masked_fill(padding, MASKED).softmax(dim=1)
        return (weights * local).sum(dim=1)
