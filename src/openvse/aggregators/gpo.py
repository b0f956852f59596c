"""The Generalized Pooling Operator, the aggregator of VSE-infinity."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from openvse.aggregators.base import Pooling
from openvse.functional import masked_softmax, position_mask, sinusoidal_positions, sort_descending


class GPO(Pooling):
    """Weighted sum over the sorted values of each dimension, with weights learned as a function of the set's size.

    ``v_d = sum_k theta_k * max_k(x_1d .. x_Nd)``, ``theta = softmax_k(f(BiGRU(PE(1..N))) / temperature)``
    (VSE-infinity, eq. 2 to 5). PE is sinusoidal; the two directions of the BiGRU are averaged and mapped to one
    number without a bias. As theta depends on N alone, it is computed once per distinct size of a batch, and
    once per size at all while the weights stand still.

    Deviation: the temperature 0.1 is in the released code, not in the paper.

    Args:
        input_dim: L.
        embed_dim: D = L.
        position_dim: width of the positional encoding.
        hidden_dim: width of the generator's BiGRU, per direction.
        temperature: divides the generator's output before the softmax.

    Example:
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
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.position_dim = position_dim
        self.temperature = temperature
        self.generator = nn.GRU(position_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden_dim, 1, bias=False)
        self._table: dict[int, Tensor] = {}
        self._table_key: tuple[object, ...] = ()

    def coefficients(self, sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N"]:
        """Return theta for each set size, zero beyond it.

        Args:
            sizes: U set sizes, each at least 1.

        Returns:
            ``[U, max(sizes)]``; each row sums to 1 and depends on its own size alone.
        """
        longest = int(sizes.max())
        weight = self.score.weight
        positions = sinusoidal_positions(longest, self.position_dim, dtype=weight.dtype, device=weight.device)
        # Packing makes the backward direction of each size start at its own last position.
        packed = pack_padded_sequence(
            positions.expand(len(sizes), -1, -1), sizes.cpu(), batch_first=True, enforce_sorted=False
        )
        with torch.autocast(weight.device.type, enabled=False):
            states, _ = pad_packed_sequence(self.generator(packed)[0], batch_first=True)
            forward, backward = states.chunk(2, dim=-1)
            logits = self.score((forward + backward) / 2).squeeze(-1)
            return masked_softmax(logits / self.temperature, position_mask(sizes, longest))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sort each dimension and sum with the coefficients of the item's size."""
        sizes, group = torch.unique(mask.sum(dim=1), return_inverse=True)
        theta = self.coefficients(sizes) if torch.is_grad_enabled() else self._cached(sizes)
        ranked = sort_descending(local, mask)[..., : theta.shape[1]]
        return torch.einsum("bln,bn->bl", ranked, theta[group].to(ranked.dtype))

    def _cached(self, sizes: Int[Tensor, "U"]) -> Float[Tensor, "U N"]:
        """Look the coefficients up by size; a changed or moved weight empties the table."""
        key = tuple((w.data_ptr(), w._version, w.device, w.dtype) for w in self.parameters())
        if key != self._table_key:
            self._table, self._table_key = {}, key
        wanted = sizes.tolist()
        for size in wanted:
            if size not in self._table:
                # One size at a time: not even rounding then depends on what was asked before.
                self._table[size] = self.coefficients(torch.tensor([size], device=sizes.device))[0]
        return nn.utils.rnn.pad_sequence([self._table[size] for size in wanted], batch_first=True)
