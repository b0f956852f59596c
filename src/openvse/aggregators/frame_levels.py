"""The video side of HGR: one global vector, and the frames once for actions and once for entities."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openvse.aggregators.attention_pool import AttentionPool
from openvse.aggregators.base import Aggregator
from openvse.errors import RecipeError
from openvse.layers.attention import checked_dropout
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features


class FrameLevels(Aggregator):
    """Three linear maps of the raw local features, one for each level of HGR (Chen et al., CVPR 2020).

    The embeddings of an item with N elements are, in this order, its global vector and, for each element, its vector
    for actions and its vector for entities: K = 1 + 2 N. The similarity ``hierarchical`` reads this order.

    Args:
        input_dim: C, the width of the raw local features, which the encoder does not project.
        aggregator: the pooling of the global level, over the projected elements: ``attention_pool`` is HGR, and ``gpo``
            HGR-infinity (VSE-infinity, Table 4).
        dropout: the probability that a feature of a projected element is dropped in training.

    Raises:
        RecipeError: dropout is not in [0, 1), or the aggregator does not make one embedding of the local features.
    """

    order_aware = True
    indexable = False
    fixed_k = False
    unit_length = False

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = AttentionPool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(input_dim, embed_dim) for _ in range(3))
        self.dropout = nn.Dropout(checked_dropout(dropout))
        self.aggregator = global_pooling(aggregator, embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        padding = ~features.mask.unsqueeze(-1)
        local = features.local.masked_fill(padding, 0.0)
        whole, actions, entities = (self.dropout(level(local)) for level in self.levels)
        pooled = self.aggregator(Features(whole, features.mask)).vectors
        both: Tensor = torch.stack([actions, entities], dim=2).masked_fill(padding.unsqueeze(-1), 0.0)
        mask = features.mask.repeat_interleave(2, dim=1)
        return EmbeddingSet(
            torch.cat([pooled, both.flatten(1, 2)], dim=1),
            nn.functional.pad(mask, (1, 0), value=True),
        )

    def curves(self) -> dict[str, list[float]]:
        return self.aggregator.curves()


def global_pooling(aggregator: Maker[Aggregator], width: int) -> Aggregator:
    """Make the pooling of a global level; raise RecipeError unless it makes one vector from local features alone."""
    made = aggregator(input_dim=width, embed_dim=width)
    probe = torch.zeros(1, 2, width)
    if not made.needs_pooled and made.fixed_k:
        with torch.no_grad():
            if made(Features(probe, torch.ones(1, 2, dtype=torch.bool))).vectors.shape[1] == 1:
                return made
    raise RecipeError(
        f"the global level is one vector, and {type(made).__name__} makes another number or needs a global vector: "
        f"take attention_pool, gpo, mean or another pooling"
    )
