"""Mean pooling, the aggregator of VSE++."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.functional import masked_mean


class Mean(Pooling):
    """Mean of the elements: ``v = 1/N sum_n x_n`` (VSE-infinity, section 3.2, AvgPool)."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_mean(local, mask)
