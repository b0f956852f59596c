"""Position codes, which GPO's generators read."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.functional import sinusoidal_positions
from openvse.registry import Registry


@runtime_checkable
class Positions(Protocol):
    """Gives each position of a sorted set a code of width P.

    The codes are made with ``num_positions`` and ``position_dim``.

    Attributes:
        learns: whether the codes are weights.
    """

    learns: bool

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``, with the type and on the device of ``like``."""
        ...


class SinusoidalPositions(nn.Module):
    """Sines and cosines (VSE-infinity, eq. 4).

    Args:
        position_dim: P.
        num_positions: not read, as there is no table.
    """

    learns: bool = False

    def __init__(self, *, position_dim: int, num_positions: int = 0) -> None:
        super().__init__()
        self.position_dim = position_dim

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        return sinusoidal_positions(size, self.position_dim, dtype=like.dtype, device=like.device)


class LearnedPositions(nn.Embedding):
    """A learned code for each position; positions beyond the table share its last code (VSE-infinity, B.3, Index).

    Args:
        num_positions: the number of rows of the table.
        position_dim: P.
    """

    learns: bool = True

    def __init__(self, *, num_positions: int, position_dim: int) -> None:
        super().__init__(num_positions, position_dim)

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        rows = torch.arange(size, device=like.device).clamp(max=self.num_embeddings - 1)
        codes: Tensor = self(rows)
        return codes


POSITIONS: Registry[Positions] = Registry(
    "positions", {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}
)
