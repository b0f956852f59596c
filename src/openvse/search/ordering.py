"""The order of hits: by score, then by the position in the index, as one integer that sorts like both."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LOW = 0xFFFFFFFF


def pack(scores: Float[Tensor, "Q n"], positions: Int[Tensor, "n"]) -> Int[Tensor, "Q n"]:
    """Pack score and position into one integer that sorts by score, then by the lower position.

    The bits of a float, read as an integer, sort like the float; those of negative floats sort in reverse, so
    all but their sign are flipped. They go into the upper half, the inverted position into the lower.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0 makes -0.0 and 0.0 one
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high + (_LOW - positions)


def unpack(keys: Int[Tensor, "Q k"]) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Return the scores and positions that ``pack`` packed."""
    high = (keys >> 32).int()
    bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def largest(keys: Int[Tensor, "Q n"], count: int) -> Int[Tensor, "Q k"]:
    """Return the keys of the best hits of every query, best first; fewer than ``count`` where there are fewer."""
    return keys.topk(min(count, keys.shape[1]), dim=1).values
