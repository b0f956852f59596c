"""The Generalized Pooling Operator, the aggregator of VSE-infinity, with its generators and position codes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.aggregators.simple import Pooling, RankedPooling
from openvse.errors import RecipeError
from openvse.functional import (
    MASKED,
    distinct_sizes,
    interpolate,
    masked_softmax,
    of_values,
    position_mask,
    sinusoidal_positions,
    sort_descending,
    sum_by_rank,
)
from openvse.kernels import is_traced, shapes_are_fixed
from openvse.layers.recurrence import packed_gru, reading_order
from openvse.registry import Maker, Registry
from openvse.types import moved, on_cpu

NUM_HEADS = 4
SHOWN_SIZES = (10, 20, 36, 49)  # of short and long captions, bottom-up-attention regions, 7 x 7 grids


def _positions_of(sizes: Int[Tensor, "U"]) -> tuple[Bool[Tensor, "U N"], Bool[Tensor, "U N"]]:
    """Return the positions of each set up to the largest one's, and those beyond its size."""
    real = position_mask(sizes, int(sizes.max()))
    return real, ~real


@functools.lru_cache(maxsize=64)
def _every_size(most: int, device: torch.device) -> Int[Tensor, "N"]:
    return moved(torch.arange(1, most + 1), device)


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
        """Return a state for each position. The states of a set do not depend on codes beyond its size.

        Args:
            codes: the position codes of each set.
            sizes: the sizes of the sets, the largest of which is N.
        """


class BiGRUGenerator(nn.GRU):
    """One bidirectional GRU layer whose two directions are averaged (VSE-infinity, eq. 5)."""

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        super().__init__(position_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Read each set in both directions."""
        # The backward direction of each size starts at its own last position.
        real = position_mask(sizes, codes.shape[1]) if is_traced() else of_values(sizes, _positions_of)[0]
        return packed_gru(self, codes, real).mean(dim=0)


class Transformer(nn.TransformerEncoderLayer):
    """One layer of a Transformer encoder with four heads, which divide the width of the codes (VSE-infinity, Table 8).

    The paper gives no widths. There are no biases, as most would shift all logits of a set equally. There is no
    dropout, so the coefficients remain a function of the size.
    """

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        if position_dim % NUM_HEADS:
            raise RecipeError(f"transformer got position_dim = {position_dim}: give a multiple of {NUM_HEADS}")
        super().__init__(position_dim, NUM_HEADS, hidden_dim, dropout=0.0, batch_first=True, bias=False)
        self.width = position_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Let the positions of each set attend to one another."""
        return cast(Tensor, self(codes, src_key_padding_mask=~position_mask(sizes, codes.shape[1])))


class MLP(nn.Sequential):
    """One hidden layer over each position by itself. It does not know the size of the set (VSE-infinity, B.3)."""

    reads_codes: bool = True

    def __init__(self, *, position_dim: int, hidden_dim: int, num_positions: int = 0) -> None:
        super().__init__(nn.Linear(position_dim, hidden_dim), nn.ReLU())
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Map each position."""
        return cast(Tensor, self(codes))


class Interpolation(nn.Module):
    """``num_positions`` learned states stretched linearly over the set, whatever its size (VSE-infinity, B.3, FSPool).

    The linear map that follows commutes with the stretching, so this is the paper's "fixed size vector".
    """

    reads_codes: bool = False

    def __init__(self, *, num_positions: int, hidden_dim: int, position_dim: int = 0) -> None:
        super().__init__()
        # Small, so that pooling starts near the mean.
        self.knots = nn.Parameter(0.02 * torch.randn(num_positions, hidden_dim))
        self.width = hidden_dim

    def read(self, codes: Float[Tensor, "U N P"], sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N S"]:
        """Stretch the states. The codes are not read."""
        return interpolate(self.knots, sizes)


GENERATORS: Registry[Generator] = Registry(
    "generator", {"bigru": BiGRUGenerator, "interpolation": Interpolation, "mlp": MLP, "transformer": Transformer}
)


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


class SinusoidalPositions(nn.Module):
    """Sines and cosines (VSE-infinity, eq. 4)."""

    learns: bool = False

    def __init__(self, *, position_dim: int, num_positions: int = 0) -> None:
        super().__init__()
        self.position_dim = position_dim

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        return sinusoidal_positions(size, self.position_dim, dtype=like.dtype, device=like.device)


class LearnedPositions(nn.Embedding):
    """A learned code for each position. Positions beyond the table share its last code (VSE-infinity, B.3, Index)."""

    learns: bool = True

    def __init__(self, *, num_positions: int, position_dim: int) -> None:
        super().__init__(num_positions, position_dim)

    def codes(self, size: int, like: Tensor) -> Float[Tensor, "N P"]:
        """Return the codes of positions 1 to ``size``."""
        rows = torch.arange(size, device=like.device).clamp(max=self.num_embeddings - 1)
        return cast(Tensor, self(rows))


POSITIONS: Registry[Positions] = Registry("positions", {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions})


class GPO(RankedPooling):
    """Weighted sum over the sorted values of each dimension, with weights learned as a function of the set's size.

    ``v_d = sum_k theta_k * max_k(x_1d .. x_Nd)``, ``theta = softmax_k(f(BiGRU(PE(1..N))) / temperature)``
    (VSE-infinity, eq. 2 to 5). PE is sinusoidal. The two directions of the BiGRU are averaged and mapped to one number
    without a bias. As theta depends only on N, it is computed once per distinct size in a batch, and kept from batch to
    batch until the weights change.

    Deviation: the temperature 0.1 is in the released code, not in the paper.

    The paper's variants (Tables 8, 11 and 12) are options: another generator, a learned index, and separate
    coefficients for each dimension.

    Args:
        position_dim: P, the width of the position codes.
        hidden_dim: the width of the generator's states (BiGRU per direction, MLP, interpolation) or of its feed-forward
            network (Transformer).
        temperature: the number that divides the generator's output before the softmax.
        generator: a part of ``GENERATORS``, which computes the coefficients from the codes. ``interpolation`` stretches
            learned coefficients over the set.
        positions: a part of ``POSITIONS``, which makes the codes: sines and cosines or a learned table.
        num_positions: the learned length of an interpolation or a table. Positions beyond a table share its last code.
        per_dimension: whether each of the L dimensions has its own coefficients.

    Raises:
        RecipeError: ``num_positions`` is below 1, or the generator cannot have this width or read these positions.

    Examples:
        >>> pool = GPO(input_dim=8, embed_dim=8)
        >>> pool.coefficients(torch.tensor([3])).shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        position_dim: int = 32,
        hidden_dim: int = 32,
        temperature: float = 0.1,
        generator: Maker[Generator] = BiGRUGenerator,
        positions: Maker[Positions] = SinusoidalPositions,
        num_positions: int = 128,
        per_dimension: bool = False,
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if num_positions < 1:
            raise RecipeError(f"gpo got num_positions = {num_positions}: it must be at least 1 (usual: 128)")
        self.temperature = temperature
        self.positions = positions(num_positions=num_positions, position_dim=position_dim)
        self.generator = generator(position_dim=position_dim, hidden_dim=hidden_dim, num_positions=num_positions)
        if self.positions.learns and not self.generator.reads_codes:
            raise RecipeError("gpo got positions: learned, which generator: interpolation does not read: leave it out")
        self.score = nn.Linear(self.generator.width, input_dim if per_dimension else 1, bias=False)
        self._table: dict[int, Tensor] = {}
        self._table_weights = torch.empty(0)

    def coefficients(self, sizes: Int[Tensor, "U"], *views: GPO) -> Float[Tensor, "*K U N *L"]:
        """Return theta for each set size, zero beyond it.

        Args:
            sizes: U set sizes, each at least 1.
            views: K poolings, each of which has its own theta, in place of this one.

        Returns:
            ``[U, max(sizes)]``, or ``[U, max(sizes), L]`` if each dimension has its own. Theta sums to 1 over the
            positions and depends only on the size.
        """
        with torch.autocast(self.score.weight.device.type, enabled=False):
            logits = torch.stack([view.logits(sizes) for view in views]) if views else self.logits(sizes)
            beyond = of_values(sizes, _positions_of)[1].unsqueeze(1)
            return logits.masked_fill(beyond, MASKED).softmax(dim=-1).mT.squeeze(-1)

    def logits(self, sizes: Int[Tensor, "U"]) -> Float[Tensor, "U C N"]:
        """Return the logits of theta, to which the softmax over the positions is applied. Subclasses can override it.

        Returns:
            ``[U, 1, max(sizes)]``, or ``[U, L, max(sizes)]`` if each dimension has its own coefficients.
        """
        codes = self.positions.codes(int(on_cpu(sizes).max()), self.score.weight).expand(len(sizes), -1, -1)
        scores: Tensor = self.score(self.generator.read(codes, sizes))
        return scores.transpose(1, 2) / self.temperature

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with the coefficients of the item's size."""
        theta, group = self._weights(mask)
        if theta.ndim == 3:
            return self.sum_by_dimension(sort_descending(local, mask), theta, group)
        return sum_by_rank(local, mask, theta[group])

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        theta, group = self._weights(mask)
        if theta.ndim == 3:
            return self.sum_by_dimension(ranked, theta, group)
        return torch.einsum("bln,bn->bl", ranked[..., : theta.shape[1]], theta[group].to(ranked.dtype))

    def pool_views(
        self, views: Sequence[RankedPooling], ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B K L"]:
        """Make all vectors by one product, if each view is a GPO without coefficients for each dimension."""
        alike = [view for view in views if isinstance(view, GPO) and view.score.out_features == 1]
        if len(alike) < len(views):
            return super().pool_views(views, ranked, mask)
        theta, group = self._weights(mask, *alike)
        return torch.einsum("bln,kbn->bkl", ranked[..., : theta.shape[2]], theta[:, group].to(ranked.dtype))

    def _weights(self, mask: Bool[Tensor, "B N"], *views: GPO) -> tuple[Float[Tensor, "*K U M *L"], Int[Tensor, "B"]]:
        """Return the coefficients for each distinct size of a batch, and the index of each item's size."""
        if shapes_are_fixed():
            sizes, group = _every_size(mask.shape[1], mask.device), mask.sum(dim=1) - 1
        else:
            sizes, group = of_values(mask, distinct_sizes, _positions_of, reading_order)
        if torch.is_grad_enabled():
            return self.coefficients(sizes, *views), group
        return torch.stack([view._cached(sizes) for view in views]) if views else self._cached(sizes), group

    @torch.inference_mode()
    def curves(self) -> dict[str, list[float]]:
        """Return the coefficients, largest element first, for the sizes in ``SHOWN_SIZES`` (the paper's Fig. 5).

        If each dimension has its own coefficients, they are averaged over the dimensions.
        """
        sizes = moved(torch.tensor(SHOWN_SIZES), self.score.weight.device)
        table = self.coefficients(sizes)
        shared = table.view(*table.shape[:2], -1).mean(dim=2)
        return {f"coefficients_{size}": row[:size].tolist() for size, row in zip(SHOWN_SIZES, shared, strict=True)}

    def _cached(self, sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N *L"]:
        """Look up the coefficients by size. The table is emptied when a weight is changed or moved.

        The weights themselves are compared, because a fused optimiser does not change their version numbers.
        """
        weights, known = torch.cat([weight.flatten() for weight in self.parameters()]), self._table_weights
        kind = weights.device, weights.dtype
        if kind != (known.device, known.dtype) or not torch.equal(weights, known):
            self._table, self._table_weights = {}, weights
        wanted = on_cpu(sizes).tolist()
        for size in wanted:
            if size not in self._table:
                # Each size is computed by itself, so that not even rounding depends on earlier calls.
                self._table[size] = self.coefficients(moved(torch.tensor([size]), sizes.device))[0]
        return nn.utils.rnn.pad_sequence([self._table[size] for size in wanted], batch_first=True)


class GPODataDependent(Pooling):
    """GPO whose generator reads the sorted values along with their positions (VSE-infinity, B.4 and Table 13).

    ``v_d = sum_k theta_k u_kd``, ``theta = softmax_k(f(BiGRU([PE(k), u_k])) / temperature)``, with u_k the k-th
    largest value of every dimension. The paper gives no formula. Here the two inputs are concatenated. As theta depends
    on the item, not only on its size, it is computed for each item. The options are the same as for ``GPO``.
    """

    def __init__(
        self, *, input_dim: int, embed_dim: int, position_dim: int = 32, hidden_dim: int = 32, temperature: float = 0.1
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.position_dim = position_dim
        self.temperature = temperature
        self.generator = BiGRUGenerator(position_dim=position_dim + input_dim, hidden_dim=hidden_dim)
        self.score = nn.Linear(hidden_dim, 1, bias=False)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        sizes = moved(on_cpu(mask).sum(dim=1), mask.device)
        compiling, weight = is_traced(), self.score.weight
        longest = mask.shape[1] if compiling else int(on_cpu(sizes).max())
        ranked = sort_descending(local, mask)[..., :longest]
        codes = sinusoidal_positions(longest, self.position_dim, dtype=weight.dtype, device=weight.device)
        with torch.autocast(weight.device.type, enabled=False):
            values = ranked.transpose(1, 2).to(weight.dtype)
            states = self.generator.read(torch.cat((codes.expand(values.shape[0], -1, -1), values), dim=-1), sizes)
            logits = self.score(states).squeeze(-1) / self.temperature
            theta = masked_softmax(logits, position_mask(sizes, longest))
        return torch.einsum("bln,bn->bl", ranked, theta.to(ranked.dtype))
