"""ESA's pooling, whose attention is learned for each dimension."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.functional import soft_pool


class ExternalAttention(Pooling):
    """``v_d = sum_n softmax_n((A x_n)_d) x_nd``: external space attention (ESA; Zhu et al., TCSVT 2023).

    Each dimension has its own distribution over the elements. ``soft_pool`` is the case A = I; ``lip`` normalises and
    bounds the logits. Deviation: the released A x_n + b has a bias, which shifts all logits of a dimension alike and so
    changes no weight; there is none here.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.attention = nn.Linear(input_dim, input_dim, bias=False)
        nn.init.xavier_uniform_(self.attention.weight)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        return soft_pool(local, mask, self.attention(local))
