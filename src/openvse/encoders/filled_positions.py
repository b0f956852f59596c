"""Captions that fill all positions of a text model, for models that attend to the padding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def fill_positions(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], *, size: int, padding: int, left: bool
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B N"]]:
    """Put the tokens of each caption into ``size`` positions, of which the others hold the padding.

    Args:
        ids: the tokens; what is real stands in front.
        mask: which are real.
        size: S, at least N.
        padding: the token that fills the other positions.
        left: the padding stands before the caption, and not behind it.

    Returns:
        The filled positions, and in which of them each token stands; for what is not real, in some of them.
    """
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if left:
        place = place + (size - mask.sum(dim=1, keepdim=True))
    # What is not real goes to a position behind all others, which is cut off.
    full = ids.new_full((len(ids), size + 1), padding).scatter(1, place.masked_fill(~mask, size), ids)
    return full[:, :size], place.clamp(max=size - 1)


def append_last(
    states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], last: Float[Tensor, "B C"]
) -> tuple[Float[Tensor, "B M C"], Bool[Tensor, "B M"]]:
    """Put one more state behind the real ones of each caption, M = N + 1.

    Args:
        states: of the tokens; what is real stands in front.
        mask: which are real.
        last: what follows them.
    """
    behind = mask.sum(dim=1)
    rows = torch.arange(len(states), device=states.device)
    wider = F.pad(states, (0, 0, 0, 1))
    wider[rows, behind] = last
    return wider, torch.arange(wider.shape[1], device=states.device) <= behind.unsqueeze(1)
