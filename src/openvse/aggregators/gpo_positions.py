"""Codes of positions, which GPO's generators read."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.functional import sinusoidal_positions

PositionsName: TypeAlias = Literal["sinusoidal", "learned"]


@runtime_checkable
class Positions(Protocol):
    """Gives each position of a sorted set a code of width P."""

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``, of the type and on the device of ``like``."""
        ...


class SinusoidalPositions(nn.Module):
    """Sines and cosines (VSE-infinity, eq. 4).

    Args:
        position_dim: P.
    """

    def __init__(self, position_dim: int) -> None:
        super().__init__()
        self.position_dim = position_dim

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        return sinusoidal_positions(size, self.position_dim, dtype=like.dtype, device=like.device)


class LearnedPositions(nn.Embedding):
    """A learned code for each position; those beyond the table share its last (VSE-infinity, B.3, Index).

    Args:
        num_positions: rows of the table.
        position_dim: P.
    """

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        rows = torch.arange(size, device=like.device).clamp(max=self.num_embeddings - 1)
        codes: Tensor = self(rows)
        return codes


def make_positions(name: PositionsName, *, num_positions: int, position_dim: int) -> Positions:
    """Return new codes of this name; a learned table has ``num_positions`` rows."""
    if name == "learned":
        return LearnedPositions(num_positions, position_dim)
    return SinusoidalPositions(position_dim)
