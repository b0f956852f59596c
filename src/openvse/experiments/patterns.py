"""Known pooling coefficients, for experiments in which GPO learns them."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.functional import position_mask

Pattern = Callable[[Int[Tensor, "U"]], Float[Tensor, "U N"]]


def _mean_of_top(sizes: Int[Tensor, "U"], counts: Int[Tensor, "U"]) -> Float[Tensor, "U N"]:
    return position_mask(counts, int(sizes.max())) / counts.unsqueeze(1)


def _linear_decay(sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N"]:
    falling = (sizes.unsqueeze(1) - torch.arange(int(sizes.max()))).clamp(min=0)
    return falling / falling.sum(dim=1, keepdim=True)


PATTERNS = MappingProxyType[str, Pattern](
    {
        "A": lambda sizes: _mean_of_top(sizes, sizes),
        "M-1": lambda sizes: _mean_of_top(sizes, torch.ones_like(sizes)),
        "M-10": lambda sizes: _mean_of_top(sizes, sizes.clamp(max=10)),
        "T-50%": lambda sizes: _mean_of_top(sizes, (sizes + 1) // 2),
        "L": _linear_decay,
    }
)
"""The patterns of VSE-infinity, B.3: mean, maximum, mean of the top 10 and of the top half, linear decay.

Each takes set sizes and returns their coefficients, largest element first: ``[U, max(sizes)]``, 0 beyond a size.
"""
