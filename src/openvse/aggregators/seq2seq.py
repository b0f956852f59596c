"""A recurrent network over the elements."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import SingleVector
from openvse.functional import compact
from openvse.layers.recurrence import forward_gru


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
        return forward_gru(self.gru, *compact(local, mask))[1][0]
