"""Attention between two sets, as a layer and as scores that weight the sum of a set. Shapes follow ``types``.

Batches hold pairs: item p of one set belongs to item p of the other. X has N elements, Z has M.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.errors import RecipeError
from openvse.functional import MASKED, masked_softmax


def check_heads(embed_dim: int, num_heads: int) -> None:
    """Raise RecipeError unless the width is a multiple of the number of heads."""
    if num_heads < 1 or embed_dim % num_heads:
        raise RecipeError(f"num_heads is {num_heads}, and the width {embed_dim}: give a number that divides it")


def checked_dropout(dropout: float) -> float:
    """Return a probability of dropout. Raise RecipeError if it is not in [0, 1)."""
    if not 0 <= dropout < 1:
        raise RecipeError(f"dropout is {dropout}: give a probability from 0 up to, but not including, 1")
    return dropout


def attend(
    query: Float[Tensor, "P H N d"],
    key: Float[Tensor, "P H M d"],
    value: Float[Tensor, "P H M v"],
    mask: Bool[Tensor, "P M"],
) -> Float[Tensor, "P H N v"]:
    """``softmax(Q K^T / sqrt(d)) V`` over the real elements (score attention, eq. 1).

    On a CPU a softmax over a short, contiguous axis, such as words, is slow. The longer axis of the queries is then put
    last, which is up to four times as fast.
    """
    many = key.shape[2] >= query.shape[2] and value.shape[3] == query.shape[3]
    if many or query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
    scores = (key @ query.transpose(2, 3)) * query.shape[3] ** -0.5
    weights = scores.masked_fill(~mask[:, None, :, None], MASKED).softmax(dim=2)
    read: Tensor = weights.transpose(2, 3) @ value
    return read


class Attention(nn.Module):
    """``LN(x + drop(W [softmax(Q_h K_h^T / sqrt(d)) V_h]_h))``: X attends to Z (score attention, eq. 1, section IV-B).

    The three projections can be computed separately, because a projection depends on one item and the rest on a pair.
    The number of heads divides D, the width of both sets.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        self.num_heads = num_heads
        # A bias of the keys would shift all scores of a query equally, which does not change the softmax.
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim, bias=False)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(
        self,
        x: Float[Tensor, "P N D"],
        query: Float[Tensor, "P N D"],
        key: Float[Tensor, "P M D"],
        value: Float[Tensor, "P M D"],
        mask: Bool[Tensor, "P M"],
        keep: Float[Tensor, "P N D"] | None = None,
    ) -> Float[Tensor, "P N D"]:
        """Let X attend to the real elements of Z, which the mask marks. ``keep`` holds the dropout factors."""
        read = attend(self._heads(query), self._heads(key), self._heads(value), mask)
        update = self.output(read.transpose(1, 2).flatten(2))
        normed: Tensor = self.norm(x + (update if keep is None else update * keep))
        return normed

    def read_itself(
        self, x: Float[Tensor, "P N D"], mask: Bool[Tensor, "P N"], keep: Float[Tensor, "P N D"] | None = None
    ) -> Float[Tensor, "P N D"]:
        """Let X attend to itself."""
        attended: Tensor = self(x, self.query(x), self.key(x), self.value(x), mask, keep)
        return attended

    def _heads(self, x: Float[Tensor, "P N D"]) -> Float[Tensor, "P H N d"]:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class AttentionScores(nn.Module):
    """``S(X, Z) = softmax_n(fc([softmax(Q_h K_h^T / sqrt(d)) V_h]_h))``, k times (score attention, eq. 2 to 4).

    Queries come from X, keys and values from Z. As ``fc`` is linear, it is applied to the values before they are
    averaged. A head then has one number per element of Z instead of d, and the result is the same. Biases of the keys,
    the values and fc would shift all scores of a set equally, which does not change a softmax, so there are none. Each
    of the k reductions has its own projections.
    """

    def __init__(self, embed_dim: int, num_heads: int, num_vectors: int) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        if num_vectors < 1:
            raise RecipeError(f"num_vectors is {num_vectors}: give 1 or more")
        self.num_heads, self.num_vectors = num_heads, num_vectors
        self.query = nn.Linear(embed_dim, num_vectors * embed_dim)
        self.key = nn.Linear(embed_dim, num_vectors * embed_dim, bias=False)
        self.value = nn.Linear(embed_dim, num_vectors * embed_dim, bias=False)
        bound = embed_dim**-0.5  # as PyTorch starts a linear map of this size
        self.fc = nn.Parameter(torch.empty(num_vectors, embed_dim).uniform_(-bound, bound))

    def forward(
        self,
        x: Float[Tensor, "P N D"],
        x_mask: Bool[Tensor, "P N"],
        z: Float[Tensor, "P M D"],
        z_mask: Bool[Tensor, "P M"],
    ) -> Float[Tensor, "P k N"]:
        """Return k weights per element of X. Each of the k sets of weights sums to 1, and padding has weight 0."""
        query, key = self._heads(self.query(x)), self._heads(self.key(z))
        per_head = self.value.weight * self.fc.flatten().unsqueeze(1)
        value = z @ per_head.view(self.num_vectors * self.num_heads, -1, x.shape[-1]).sum(dim=1).T
        read = attend(query, key, value.transpose(1, 2).unsqueeze(-1), z_mask)
        scores = read.view(x.shape[0], self.num_vectors, self.num_heads, -1).sum(dim=2)
        return masked_softmax(scores, x_mask.unsqueeze(1).expand_as(scores))

    def _heads(self, x: Float[Tensor, "P N E"]) -> Float[Tensor, "P H N d"]:
        return x.view(*x.shape[:2], self.num_vectors * self.num_heads, -1).transpose(1, 2)


def xavier_linear(input_dim: int, output_dim: int, *, bias: bool = True) -> nn.Linear:
    """Make a linear layer with Xavier-uniform weights and a bias of 0, or without one."""
    linear = nn.Linear(input_dim, output_dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
