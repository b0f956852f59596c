"""A recurrent network over the elements."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from openvse.aggregators.base import SingleVector
from openvse.functional import compact
from openvse.layers.recurrence import scanned_states


class Seq2Seq(SingleVector):
    """The last state of a GRU that reads the elements in their order (VSE-infinity, Table 1, Seq2Seq).

    Args:
        embed_dim: D, the width of the state; at 1024 there are 6.3 M parameters, as published.
    """

    order_aware = True

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.gru = nn.GRU(input_dim, embed_dim, batch_first=True)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        # Size augmentation leaves gaps; the network reads the remaining elements as one sequence.
        elements, real = compact(local, mask)
        if torch.compiler.is_compiling():
            states = scanned_states(elements, *self.gru.all_weights[0])
            return states[torch.arange(states.shape[0], device=states.device), real.sum(dim=1) - 1]
        packed = pack_padded_sequence(elements, real.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        last: Tensor = self.gru(packed)[1][0]
        return last
