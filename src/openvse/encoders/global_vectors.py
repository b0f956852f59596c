"""The global vector of an item, for aggregators that need one besides the local features (PVSE, section 3.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import compact, masked_mean
from openvse.layers.recurrence import packed_gru, states_at_end
from openvse.registry import Configured, Registry


class GlobalVector(Configured, nn.Module, ABC):
    """Makes one vector from an item's raw local features. The build passes ``input_dim`` (C) and ``embed_dim`` (D)."""

    @abstractmethod
    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        """Return the vector of each item. Masked positions do not change it."""


class MeanVector(nn.Linear, GlobalVector):
    """One linear layer on the mean local feature, Xavier-uniform, bias 0: PVSE's global vector of images."""

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim, embed_dim)
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(  # type: ignore[override]
        self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B D"]:
        return super().forward(masked_mean(local, mask))


class BiGRUVector(GlobalVector):
    """The last states of a bidirectional GRU, D/2 each, concatenated: PVSE's global vector of videos (ordered frames).

    Args:
        at_last: whether to take both directions' states at the last element, where the backward direction has read
            only this element, as PVSE's published models do.

    Raises:
        RecipeError: D is odd.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, at_last: bool = False) -> None:
        super().__init__()
        self.at_last = at_last
        if embed_dim % 2:
            raise RecipeError(
                f"bigru splits embed_dim over two directions: {embed_dim} is odd, give an even one"
            )
        self.gru = nn.GRU(input_dim, embed_dim // 2, batch_first=True, bidirectional=True)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        local, mask = compact(local, mask)
        states, final = packed_gru(self.gru, local, mask)
        if self.at_last:
            final = states_at_end(states, mask)
        return final.transpose(0, 1).flatten(1)


GLOBAL_VECTORS: Registry[GlobalVector] = Registry("global vector", {"bigru": BiGRUVector, "mean": MeanVector})
