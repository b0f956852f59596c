"""SoftPool."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.functional import soft_pool


class SoftPool(Pooling):
    """``v_d = sum_n softmax_n(x_nd) x_nd`` (Stergiou et al. 2021); the embedding level of AdPool."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Weight each real element by the softmax of its value."""
        return soft_pool(local, mask)
