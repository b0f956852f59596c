"""Local importance-based pooling."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.functional import masked_mean, soft_pool

LARGEST_LOGIT = 12.0  # an element outweighs another by e^12 at most
EPS = 1e-5


class LIP(Pooling):
    """``v_d = sum_n softmax_n(G(x)_nd) x_nd`` with a learned importance G (Gao et al. 2019, eq. 3).

    ``G(x) = 12 sigmoid(InstanceNorm(W x))`` is the paper's simplified form, with a linear map in place of its
    convolution. The norm is over the elements of an item, in each dimension, with a learned scale and shift.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.importance = nn.Linear(input_dim, input_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(input_dim))
        self.shift = nn.Parameter(torch.zeros(input_dim))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        raw: Tensor = self.importance(local)
        centred = raw - masked_mean(raw, mask).unsqueeze(1)
        variance = masked_mean(centred.square(), mask).unsqueeze(1)
        logits: Tensor = (
            LARGEST_LOGIT * (self.scale * centred * (variance + EPS).rsqrt() + self.shift).sigmoid()
        )
        return soft_pool(local, mask, logits)
