"""DivE's aggregator, whose element slots compete for the local features."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator, require_same_width
from openvse.errors import ModelError, RecipeError
from openvse.functional import masked_max
from openvse.layers.attention import checked_dropout
from openvse.types import EmbeddingSet, Features

_EPS = 1e-7  # of the released code, for a slot that wins nothing


class SlotAttention(Aggregator):
    """K embeddings of an item: its global vector plus K slots that divide the local features among them.

    The slots are learned vectors q_k, which ``depth`` blocks with shared weights refine (DivE, Kim et al., CVPR 2023,
    in the pre-norm form of its released code)::

        a_kn = softmax_k( (W_q LN(s_k))^T (W_k (LN(x_n) + p_n)) / sqrt(d) )      the slots compete for each element
        s_k += drop( W_o sum_n a_kn W_v LN(x_n) / sum_n a_kn )                   in each head
        s_k += W_2 drop( GELU(W_1 LN(s_k)) )
        z_k  = LN(global) + LN(s_k)

    The residual, on which ``set_uniformity`` and ``diversity`` act, is LN(s_k).

    Deviation: in the released code padding takes part, and positions are shares of the batch's longest caption.

    Args:
        embed_dim: D, which is also the width of the slots and of the global vector.
        num_embeddings: K. 4 in the paper.
        depth: the number of blocks.
        num_heads: the heads of the attention, each ``head_dim`` = d wide.
        head_dim: d.
        dropout: the probability that a feature of an update is dropped in training.
        global_vector: ``max``, the maximum of the local features in each dimension (L = D), or ``pooled``, the global
            vector of the encoder: the GRU's for texts, whose local features are then word vectors.
        positions: ``sine`` adds sines and cosines of ``2 pi n / N``, times the frequencies of the Transformer, to the
            keys, as DivE does for words.

    Raises:
        RecipeError: a number is out of range, or ``global_vector: max`` has L other than D.
    """

    yields_residual = True

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_embeddings: int = 4,
        depth: int = 4,
        num_heads: int = 4,
        head_dim: int = 512,
        dropout: float = 0.1,
        global_vector: Literal["max", "pooled"] = "max",
        positions: Literal["none", "sine"] = "none",
    ) -> None:
        super().__init__()
        if min(num_embeddings, depth, num_heads, head_dim) < 1:
            raise RecipeError(
                f"slot_attention got num_embeddings = {num_embeddings}, depth = {depth}, num_heads = {num_heads} and "
                f"head_dim = {head_dim}: each must be at least 1"
            )
        self.needs_pooled, self.order_aware = global_vector == "pooled", positions == "sine"
        if not self.needs_pooled:
            require_same_width("slot_attention with global_vector: max", input_dim, embed_dim)
        self.depth, self.num_heads = depth, num_heads
        inner_dim = num_heads * head_dim
        self.slots = nn.Parameter(torch.randn(num_embeddings, embed_dim))
        self.norm_local, self.norm_slots = nn.LayerNorm(input_dim), nn.LayerNorm(embed_dim)
        self.query = nn.Linear(embed_dim, inner_dim, bias=False)
        self.key = nn.Linear(input_dim, inner_dim, bias=False)
        self.value = nn.Linear(input_dim, inner_dim, bias=False)
        self.update = nn.Sequential(nn.Linear(inner_dim, embed_dim), nn.Dropout(checked_dropout(dropout)))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(embed_dim),
            nn.Linear(embed_dim, 4 * embed_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * embed_dim, embed_dim),
        )
        self.norm, self.norm_global = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        """Make K embeddings of each item. ``vectors`` and ``residual`` are ``[B, K, D]``.

        Raises:
            ModelError: there is no global vector, and ``global_vector`` is ``pooled``.
        """
        whole = features.pooled if self.needs_pooled else masked_max(features.local, features.mask)
        if whole is None:
            raise ModelError(
                "slot_attention with global_vector: pooled needs an encoder that makes a global vector"
            )
        residual = self.norm(self._refined(features)[0])
        return EmbeddingSet.full(self.norm_global(whole).unsqueeze(1) + residual, residual)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the weights of the last block, averaged over its heads. See ``Attends``."""
        return self._refined(features)[1].mean(dim=1)

    def _refined(self, features: Features) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B H K N"]]:
        """Return the slots after the last block, and the weights with which that block read the local features."""
        mask = features.mask
        local = self.norm_local(features.local.masked_fill(~mask.unsqueeze(-1), 0.0))
        # The blocks share their weights, so keys and values are the same in all of them.
        placed = local + _sines(local, mask) if self.order_aware else local
        keys, values = self._heads(self.key(placed)), self._heads(self.value(local))
        slots = self.slots.expand(local.shape[0], -1, -1)  # len() of a tensor is a constant in an export
        for _ in range(self.depth):
            query = self._heads(self.query(self.norm_slots(slots)))
            shares = (query @ keys.mT * query.shape[3] ** -0.5).softmax(dim=2)
            shares = shares.masked_fill(~mask[:, None, None], 0.0)
            weights = shares / (shares.sum(dim=3, keepdim=True) + _EPS)
            slots = slots + self.update((weights @ values).transpose(1, 2).flatten(2))
            slots = slots + self.feed_forward(slots)
        return slots, weights

    def _heads(self, x: Float[Tensor, "B n E"]) -> Float[Tensor, "B H n d"]:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def _sines(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
    """Return sines (even columns) and cosines (odd ones) of the place of each element in its item, from 0 to 2 pi."""
    count = mask.cumsum(dim=1).to(torch.promote_types(local.dtype, torch.float32))
    column = torch.arange(local.shape[2], device=mask.device)
    slowness = 10_000 ** (2 * (column // 2).to(count.dtype) / local.shape[2])
    angles = (2 * math.pi * count / (count[:, -1:] + 1e-6)).unsqueeze(2) / slowness
    return torch.where(column % 2 == 1, angles.cos(), angles.sin()).to(local.dtype)
