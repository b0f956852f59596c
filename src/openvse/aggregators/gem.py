"""Generalized-mean pooling."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.errors import RecipeError
from openvse.functional import MASKED


class GeM(Pooling):
    """``v_d = (1/N sum_n max(x_nd, eps)^p)^(1/p)`` with one learned p (Radenovic et al. 2019, eq. 3).

    It is computed as a log-sum-exp of ``p log x``, so that neither large p nor small x overflows; the learned
    parameter is log p, which keeps p positive. Deviation: negative features are clamped to eps; the published form
    is for features after a ReLU, and explodes on others (VSE-infinity, section 5.2).

    Args:
        exponent: the initial p; 1 is the mean, and large values approach the maximum.
        eps: the lower limit to which features are clamped.

    Raises:
        RecipeError: p or eps is not positive.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, exponent: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if exponent <= 0 or eps <= 0:
            raise RecipeError(f"gem got exponent = {exponent}, eps = {eps}: both must be above 0")
        self.eps = eps
        self.log_exponent = nn.Parameter(torch.tensor(math.log(exponent)))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        exponent = self.log_exponent.exp()
        powers = exponent * local.clamp(min=self.eps).log()
        total = powers.masked_fill(~mask.unsqueeze(-1), MASKED).logsumexp(dim=1)
        return ((total - mask.sum(dim=1, keepdim=True).to(total.dtype).log()) / exponent).exp()
