"""Generators of GPO's coefficients: networks over positions, or a curve stretched over the set."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import interpolate, position_mask
from openvse.layers.recurrence import packed_gru
from openvse.registry import Registry

NUM_HEADS = 4


@runtime_checkable
class Generator(Protocol):
    """Turns the codes of positions 1..N into states, from which one linear map makes the coefficients.

    A generator is made with ``position_dim``, ``hidden_dim`` and ``num_positions``.

    Attributes:
        width: S, the width of a state.
        reads_codes: whether the states depend on the codes.
    """

    width: int
    reads_codes: bool

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Return a state for each position; the states of a set do not depend on codes beyond its size.

        Args:
            codes: the position codes of each set.
            sizes: the sizes of the sets, the largest of which is N.
        """
        ...


class BiGRU(nn.GRU):
    """One layer of a GRU in both directions, which are averaged (VSE-infinity, eq. 5).

    Args:
        position_dim: width of the codes.
        hidden_dim: width of a state, per direction.
        num_positions: not read.
    """

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        super().__init__(position_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Read each set in both directions."""
        # The backward direction of each size starts at its own last position.
        return packed_gru(self, codes, position_mask(sizes, codes.shape[1]))[0].mean(dim=0)


class Transformer(nn.TransformerEncoderLayer):
    """One layer of a Transformer encoder with four heads (VSE-infinity, Table 8).

    The paper gives no widths. There are no biases, as most would shift all logits of a set equally, and there is no
    dropout, so that the coefficients remain a function of the size.

    Args:
        position_dim: width of the codes and of a state, a multiple of 4.
        hidden_dim: width of the feed-forward network.
        num_positions: not read.

    Raises:
        RecipeError: the width of the codes is not a multiple of the number of heads.
    """

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        if position_dim % NUM_HEADS:
            raise RecipeError(
                f"the transformer generator got position_dim = {position_dim}: it must be a multiple of {NUM_HEADS}"
            )
        super().__init__(position_dim, NUM_HEADS, hidden_dim, dropout=0.0, batch_first=True, bias=False)
        self.width = position_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Let the positions of each set attend to one another."""
        states: Tensor = self(codes, src_key_padding_mask=~position_mask(sizes, codes.shape[1]))
        return states


class MLP(nn.Sequential):
    """One hidden layer over each position by itself, which does not know the set's size (VSE-infinity, B.3).

    Args:
        position_dim: width of the codes.
        hidden_dim: width of the hidden layer.
        num_positions: not read.
    """

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        super().__init__(nn.Linear(position_dim, hidden_dim), nn.ReLU())
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Map each position."""
        states: Tensor = self(codes)
        return states


class Interpolation(nn.Module):
    """Learned states stretched linearly over the set, whatever its size (VSE-infinity, B.3; the idea of FSPool).

    The linear map that follows commutes with the stretching, so this is the paper's "fixed size vector".

    Args:
        num_positions: the number of states that are learned.
        hidden_dim: the width of a state.
        position_dim: not read, since the codes are not read.
    """

    reads_codes: bool = False

    def __init__(self, *, num_positions: int, hidden_dim: int, position_dim: int = 0) -> None:
        super().__init__()
        # Small, so that pooling starts near the mean.
        self.knots = nn.Parameter(0.02 * torch.randn(num_positions, hidden_dim))
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Stretch the states; the codes are not read."""
        return interpolate(self.knots, sizes)


GENERATORS: Registry[Generator] = Registry(
    "generator",
    {"bigru": BiGRU, "interpolation": Interpolation, "mlp": MLP, "transformer": Transformer},
)
