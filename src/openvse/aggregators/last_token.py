"""The last element as the embedding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling


class LastToken(Pooling):
    """``v = x_N``: CLIP's end-of-text token (Radford et al., 2021, section 2.4), the last word of a BiGRU."""

    order_aware = True

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        last = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(dim=1)
        return local[torch.arange(local.shape[0], device=local.device), last]
