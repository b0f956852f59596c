"""Attention pooling with a learned query, the head of SigLIP's image tower."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.aggregators.base import Pooling
from openvse.layers.attention import check_heads

HEAD_DIM = 64  # in every published SigLIP, except the shape-optimised ones with 72


class MapHead(Pooling):
    """``z + MLP(LN(z))``, where ``z`` is the result of a learned query that attends to the elements with several heads.

    It is the multi-head attention pooling of Zhai et al. (Scaling Vision Transformers, CVPR 2022, section 2.3), with
    which SigLIP makes the embedding of an image from its patches.

    Args:
        num_heads: the number of heads; None means one for each 64 dimensions, and at least one.
        hidden_dim: the hidden width of the MLP; None means 4 D.
        activation: the activation of the MLP: gelu, or gelu_tanh, its approximation by a hyperbolic tangent.
        eps: the number that is added to the variance in the normalisation.

    Raises:
        RecipeError: the widths differ, or the heads do not divide them.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        activation: Literal["gelu", "gelu_tanh"] = "gelu_tanh",
        eps: float = 1e-6,
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        heads = num_heads if num_heads is not None else max(1, embed_dim // HEAD_DIM)
        check_heads(embed_dim, heads)
        self.approximate = "tanh" if activation == "gelu_tanh" else "none"
        self.probe = nn.Parameter(torch.empty(1, 1, embed_dim))
        nn.init.xavier_uniform_(self.probe)
        self.attention = nn.MultiheadAttention(embed_dim, heads, batch_first=True)
        self.layernorm = nn.LayerNorm(embed_dim, eps=eps)
        hidden = hidden_dim or 4 * embed_dim
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(embed_dim, hidden), "fc2": nn.Linear(hidden, embed_dim)})

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        probe = self.probe.expand(local.shape[0], -1, -1)
        read, _ = self.attention(probe, local, local, key_padding_mask=~mask, need_weights=False)
        hidden = F.gelu(self.mlp["fc1"](self.layernorm(read)), approximate=self.approximate)
        pooled: Tensor = (read + self.mlp["fc2"](hidden)).squeeze(1)
        return pooled
