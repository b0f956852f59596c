"""GPO whose coefficients depend on the values too."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.aggregators.gpo_generators import BiGRU
from openvse.functional import masked_softmax, position_mask, sinusoidal_positions, sort_descending


class GPODataDependent(Pooling):
    """GPO whose generator reads the sorted values along with their positions (VSE-infinity, B.4 and Table 13).

    ``v_d = sum_k theta_k u_kd``, ``theta = softmax_k(f(BiGRU([PE(k), u_k])) / temperature)``, with u_k the k-th
    largest value of every dimension. The paper gives no formula; the two inputs are concatenated here. As theta
    depends on the item, not only on its size, it is computed for each item.

    Args:
        input_dim: L.
        embed_dim: D = L.
        position_dim: P, the width of the positional encoding.
        hidden_dim: the width of the generator's BiGRU, per direction.
        temperature: the number that divides the generator's output before the softmax.
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
        self.generator = BiGRU(position_dim=position_dim + input_dim, hidden_dim=hidden_dim)
        self.score = nn.Linear(hidden_dim, 1, bias=False)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sort each dimension and sum with coefficients made from the sorted values."""
        sizes = mask.sum(dim=1)
        compiling, weight = torch.compiler.is_compiling(), self.score.weight
        longest = mask.shape[1] if compiling else int(sizes.max())
        ranked = sort_descending(local, mask)[..., :longest]
        codes = sinusoidal_positions(longest, self.position_dim, dtype=weight.dtype, device=weight.device)
        with torch.autocast(weight.device.type, enabled=False):
            values = ranked.transpose(1, 2).to(weight.dtype)
            states = self.generator.read(
                torch.cat((codes.expand(values.shape[0], -1, -1), values), dim=-1), sizes
            )
            logits = self.score(states).squeeze(-1) / self.temperature
            theta = masked_softmax(logits, position_mask(sizes, longest))
        return torch.einsum("bln,bn->bl", ranked, theta.to(ranked.dtype))
