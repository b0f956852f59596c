"""A graph convolution before another aggregator."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator
from openvse.aggregators.simple import Mean
from openvse.errors import RecipeError
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features


class GCN(Aggregator):
    """Graph convolutions over all pairs of elements, then any aggregator (VSE-infinity, Table 1; VSRN, eq. 1, 2).

    A layer is ``x_n + W_r 1/N sum_m R_nm W_g x_m`` with the affinities ``R_nm = (W_t x_n) . (W_p x_m)``.
    Deviation: VSRN normalises ``W_r ..`` over the batch; here an item does not see its batch-mates.

    Args:
        aggregator: the part that pools the convolved elements: ``mean``, or ``seq2seq`` as in VSRN.
        num_layers: the number of layers; 1 has the published 4.2 M parameters at a width of 1024; VSRN stacks 4.
        layer_norm: whether to normalise what each element receives, with a gain that starts at 0, as VSRN's
            normalisation does: each layer begins as the identity, and several cannot overflow.

    Raises:
        RecipeError: ``num_layers`` is below 1.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = Mean,
        num_layers: int = 1,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise RecipeError(f"gcn got num_layers = {num_layers}: it must be at least 1 (usual: 1 to 4)")
        self.layers = nn.ModuleList(_Layer(input_dim, layer_norm) for _ in range(num_layers))
        inner = aggregator(input_dim=input_dim, embed_dim=embed_dim)
        self.aggregator: Aggregator = inner
        self.order_aware, self.indexable = inner.order_aware, inner.indexable
        self.needs_pooled = inner.needs_pooled
        self.fixed_k, self.yields_residual = inner.fixed_k, inner.yields_residual
        self.unit_length = inner.unit_length

    def forward(self, features: Features) -> EmbeddingSet:
        local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        for layer in self.layers:
            local = layer(local, features.mask)
        embedded: EmbeddingSet = self.aggregator(replace(features, local=local))
        return embedded

    def curves(self) -> dict[str, list[float]]:
        return self.aggregator.curves()


class _Layer(nn.Module):
    """One graph convolution with a residual connection."""

    def __init__(self, width: int, layer_norm: bool) -> None:
        super().__init__()
        self.row, self.column = nn.Linear(width, width), nn.Linear(width, width)
        self.message, self.update = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        for gain in self.norm.parameters():
            nn.init.zeros_(gain)

    def forward(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        """Add to each element what the others send it."""
        weights = mask.to(local.dtype).unsqueeze(1) / mask.sum(dim=1).view(-1, 1, 1)
        affinity = self.row(local) @ self.column(local).transpose(1, 2) * weights
        changed: Tensor = local + self.norm(self.update(affinity @ self.message(local)))
        return changed
