"""AdaPool (not VSE+2AD's AdPool)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.functional import masked_mean, masked_softmax, soft_pool


class AdaPool(Pooling):
    """A learned mix of SoftPool and of a sum weighted by likeness to the mean (Stergiou and Poppe 2023).

    ``v = b sum_n softmax_n(DSC(m, x_n)) x_n + (1 - b) SoftPool(x)``, where m is the mean of the elements and
    ``DSC(m, x) = 2 |m . x| / (|m|^2 + |x|^2)``. Deviation: b is one number, a sigmoid, where the paper has one
    for each place of a fixed pooling region; a set has no such places.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.mix = nn.Parameter(torch.tensor(0.0))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = masked_mean(local, mask)
        product = torch.einsum("bnl,bl->bn", local, mean)
        norms = local.square().sum(dim=-1) + mean.square().sum(dim=-1, keepdim=True)
        likeness = 2 * product.abs() / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        alike = torch.einsum("bn,bnl->bl", masked_softmax(likeness, mask).to(local.dtype), local)
        return torch.lerp(soft_pool(local, mask), alike, self.mix.sigmoid().to(local.dtype))
