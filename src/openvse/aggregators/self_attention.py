"""Self-attention before mean pooling."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.aggregators.base import Pooling
from openvse.functional import masked_mean


class SelfAttention(Pooling):
    """``v = 1/N sum_n (x_n + sum_m softmax_m(q_n . k_m / sqrt(L)) v_m)`` (VSE-infinity, Table 1, SelfAttn).

    The paper gives no formula. Queries, keys and values as linear maps of the elements, and a residual connection, are
    usual, and have 3.1 M parameters at a width of 1024. With a layer normalisation of the sum and a bias of the keys,
    as in a Transformer, there are 3.2 M, as the paper reports.

    Args:
        layer_norm: whether to normalise each element after the sum, and to give the keys a bias.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, layer_norm: bool = False) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        # A bias of the keys shifts all scores of a query equally, which does not change the softmax.
        self.query = nn.Linear(input_dim, input_dim)
        self.key = nn.Linear(input_dim, input_dim, bias=layer_norm)
        self.value = nn.Linear(input_dim, input_dim)
        self.norm = nn.LayerNorm(input_dim) if layer_norm else nn.Identity()

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        query, key, value, real = self.query(local), self.key(local), self.value(local), mask.unsqueeze(1)
        if torch.compiler.is_compiling():  # ONNX has attention with heads only
            query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
            heads = F.scaled_dot_product_attention(query, key, value, attn_mask=real.unsqueeze(1))
            read = heads.squeeze(1)
        else:
            read = F.scaled_dot_product_attention(query, key, value, attn_mask=real)
        return masked_mean(self.norm(local + read), mask)
