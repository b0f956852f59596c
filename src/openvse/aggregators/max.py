"""Max pooling."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling
from openvse.functional import masked_max


class Max(Pooling):
    """Largest value of each dimension: ``v_d = max_n x_nd`` (VSE-infinity, section 3.2, MaxPool)."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_max(local, mask)
