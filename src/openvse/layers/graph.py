"""Attention between the neighbours of a graph."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.functional import MASKED


class GraphReasoning(nn.Module):
    """``x_i + W sum_j b_ij x_j``, layer-normalised, with ``b_i = softmax_j( (Q x_i) . (K x_j) / sqrt(d) )``.

    j runs over the neighbours of i. A node without neighbours keeps its vector, layer-normalised (HGR, section 3.1).
    Keys have no bias, as it would shift all logits of a node alike.

    Args:
        width: D.
        dropout: the probability that a feature of the update is dropped in training.
    """

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = max(1, width // 2)
        self.query, self.key = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.message = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.scale = 1 / math.sqrt(hidden)

    def forward(self, nodes: Float[Tensor, "B S D"], edges: Bool[Tensor, "B S S"]) -> Float[Tensor, "B S D"]:
        """Let each node read its neighbours: ``edges[b, i, j]`` says that i reads j."""
        logits = (self.query(nodes) @ self.key(nodes).mT * self.scale).masked_fill(~edges, MASKED)
        weights = torch.softmax(logits, dim=2).masked_fill(~edges, 0.0)
        updated: Tensor = self.norm(nodes + self.dropout(self.message(weights @ nodes)))
        return updated
