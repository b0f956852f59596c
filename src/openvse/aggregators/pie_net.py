"""The Polysemous Instance Embedding Network, the aggregator of PVSE."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator
from openvse.errors import ModelError, RecipeError
from openvse.functional import MASKED
from openvse.types import EmbeddingSet, Features


class PIENet(Aggregator):
    """K embeddings of an item: its global vector plus what each of K attention maps finds in the local features.

    ``alpha = softmax_n(w_2 tanh(w_1 x_n))`` with K heads, ``r_k = sigmoid(w_3 sum_n alpha_kn x_n + b_3)``,
    ``z_k = LayerNorm(pooled + r_k)`` (PVSE, eq. 2 to 4). The diversity term acts on the residual r.

    Args:
        input_dim: L, the width of the raw local features, which the encoder does not project.
        embed_dim: D, which is also the width of the global vector.
        num_embeddings: K; 0 leaves only the global vector (Fig. 5), which is VSE++ on the same encoders.
        with_global: whether the global vector is added; without it, ``z_k = LayerNorm(r_k)`` (No Global, Fig. 6).
        combine: how the global vector and a residual are combined: ``add``, or ``concatenate`` for
            ``z_k = LayerNorm([pooled, r_k])``, which is 2 D wide (No Residual, Fig. 6).
        joined: whether the K embeddings become a single one, K times as wide, so that a pair has one cosine (No MIL,
            Fig. 6); such a set has no residual.

    Raises:
        RecipeError: K is below 0, or there is no global vector although the other options need one.
    """

    needs_pooled = True
    yields_residual = True

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_embeddings: int = 2,
        with_global: bool = True,
        combine: Literal["add", "concatenate"] = "add",
        joined: bool = False,
    ) -> None:
        super().__init__()
        if not with_global and (combine == "concatenate" or num_embeddings == 0):
            raise RecipeError(
                "pie_net has with_global: false, and num_embeddings: 0 or combine: concatenate needs the global "
                "vector: change one of them"
            )
        self.needs_pooled, self.yields_residual = with_global, not joined
        self.combine, self.joined = combine, joined
        if num_embeddings < 0:
            raise RecipeError(
                f"pie_net got num_embeddings = {num_embeddings}: it must be at least 0 (usual: 1 to 8)"
            )
        self.num_embeddings = num_embeddings
        if num_embeddings == 0:
            self.yields_residual = False
            return
        hidden_dim = max(1, input_dim // 2)
        self.hidden = nn.Linear(input_dim, hidden_dim, bias=False)
        self.heads = nn.Linear(hidden_dim, num_embeddings, bias=False)
        self.residual = nn.Linear(input_dim, embed_dim)
        self.norm = nn.LayerNorm(2 * embed_dim if combine == "concatenate" else embed_dim)
        for layer in (self.hidden, self.heads, self.residual):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.residual.bias)

    def forward(self, features: Features) -> EmbeddingSet:
        """Make ``vectors`` and ``residual``, ``[B, K, D]``; raise ModelError if there is no global vector."""
        if self.needs_pooled and features.pooled is None:
            raise ModelError(
                "pie_net needs Features.pooled: give the encoder global_vector: mean (images) or output: words (bigru)"
            )
        if self.num_embeddings == 0:
            assert features.pooled is not None
            vectors = features.pooled.unsqueeze(1)
            return EmbeddingSet.full(vectors)
        local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        attention = self._heads(local, features.mask)
        residual = self.residual(torch.einsum("bnk,bnl->bkl", attention, local)).sigmoid()
        vectors = self.norm(self._combined(features.pooled, residual))
        if self.joined:
            vectors = vectors.flatten(1).unsqueeze(1)
        return EmbeddingSet.full(vectors, None if self.joined else residual)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the attention maps of the heads; see ``Attends``."""
        local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        return self._heads(local, features.mask).transpose(1, 2)

    def _heads(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        scores: Tensor = self.heads(self.hidden(local).tanh())
        return scores.masked_fill(~mask.unsqueeze(-1), MASKED).softmax(dim=1)

    def _combined(
        self, pooled: Float[Tensor, "B D"] | None, residual: Float[Tensor, "B K D"]
    ) -> Float[Tensor, "B K d"]:
        if pooled is None or not self.needs_pooled:
            return residual
        repeated = pooled.unsqueeze(1)
        if self.combine == "add":
            return repeated + residual
        return torch.cat([repeated.expand_as(residual), residual], dim=2)
