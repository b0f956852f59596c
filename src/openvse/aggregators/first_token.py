"""The first element as the embedding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.aggregators.base import Pooling


class FirstToken(Pooling):
    """``v = x_1``: the CLS token of BERT, the first word of a BiGRU (VSE-infinity, section 5.2, CLS)."""

    order_aware = True

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        first = mask.to(torch.int8).argmax(dim=1)
        return local[torch.arange(local.shape[0], device=local.device), first]
