"""Captions that fill all positions of a text model, for models that attend to the padding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def fill_positions(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], *, size: int, padding: int, left: bool
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B N"]]:
    """Put the tokens of each caption into ``size`` positions, and fill the other positions with the padding.

    Args:
        ids: the tokens; real tokens come first.
        mask: which tokens are real.
        size: S, the number of positions, at least N.
        padding: the token that fills the other positions.
        left: whether the padding is before the caption, not after it.

    Returns:
        The filled positions, and the position of each token; the positions of tokens that are not real have no meaning.
    """
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if left:
        place = place + (size - mask.sum(dim=1, keepdim=True))
    # Tokens that are not real go to an extra last position, which is cut off.
    full = ids.new_full((ids.shape[0], size + 1), padding).scatter(1, place.masked_fill(~mask, size), ids)
    return full[:, :size], place.clamp(max=size - 1)


def append_last(
    states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], last: Float[Tensor, "B C"]
) -> tuple[Float[Tensor, "B M C"], Bool[Tensor, "B M"]]:
    """Append one more state after the real states of each caption, M = N + 1.

    Args:
        states: the states of the tokens; real states come first.
        mask: which states are real.
        last: the state to append to each caption.
    """
    behind = mask.sum(dim=1)
    rows = torch.arange(states.shape[0], device=states.device)
    wider = F.pad(states, (0, 0, 0, 1))
    wider[rows, behind] = last
    return wider, torch.arange(wider.shape[1], device=states.device) <= behind.unsqueeze(1)
