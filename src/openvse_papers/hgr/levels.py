"""The levels of HGR: frames of a clip, and roles of a sentence."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator, require_same_width
from openvse.aggregators.learned import AttentionPool
from openvse.errors import RecipeError
from openvse.functional import MASKED, places_of
from openvse.layers.attention import checked_dropout
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features, Graph, on_cpu


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
    """Make the pooling of a global level. Raise RecipeError unless it makes one vector from local features alone."""
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


NUM_ROLES = 16


class GraphLevels(Aggregator):
    """Graph reasoning over the event, the actions and the entities of a caption (HGR, Chen et al., CVPR 2020).

    The event is the pooled caption. An action or entity is the maximum of its words in each dimension, times the
    embedding of its role. Each layer of reasoning then lets the nodes read their neighbours (``GraphReasoning``). The
    embeddings are, in this order, the event and alternately an action and an entity. The mask marks the existing ones.
    A caption without a graph has only its event.

    Args:
        aggregator: the pooling of the event: ``attention_pool`` is HGR, and ``gpo`` HGR-infinity (VSE-infinity, Table
            4).
        num_layers: the number of layers of reasoning. 0 turns it off, with its normalisation.
        dropout: the probability that a feature of a word's state is dropped in training. The released code drops
            features of word embeddings instead: ``dropout`` of the encoder ``role_graph``.
        reasoning_dropout: the same for the updates of the reasoning.

    Raises:
        RecipeError: the widths differ, the number of layers is below 0, a probability is not in [0, 1), or the
            aggregator does not make one embedding of the words.
    """

    order_aware = True
    indexable = False
    unit_length = False

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = AttentionPool,
        num_layers: int = 1,
        dropout: float = 0.0,
        reasoning_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_same_width("graph_levels", input_dim, embed_dim)
        if num_layers < 0:
            raise RecipeError(f"graph_levels got num_layers = {num_layers}: give 0 or more (usual: 1)")
        checked_dropout(reasoning_dropout)
        self.aggregator = global_pooling(aggregator, embed_dim)
        self.roles = nn.Embedding(NUM_ROLES, embed_dim)
        self.layers = nn.ModuleList(GraphReasoning(embed_dim, reasoning_dropout) for _ in range(num_layers))
        self.dropout = nn.Dropout(checked_dropout(dropout))

    def forward(self, features: Features) -> EmbeddingSet:
        local = self.dropout(features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0))
        nodes: Tensor = self.aggregator(Features(local, features.mask)).vectors
        there = torch.ones(nodes.shape[:2], dtype=torch.bool, device=nodes.device)
        edges = torch.zeros(nodes.shape[0], 1, 1, dtype=torch.bool, device=nodes.device)
        if features.graph is not None:
            there, edges = features.graph.members.any(dim=2), features.graph.edges
            nodes = torch.cat([nodes, self._nodes(local, features.graph)], dim=1)
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return EmbeddingSet(nodes.masked_fill(~there.unsqueeze(-1), 0.0), there)

    def _nodes(self, local: Float[Tensor, "B N L"], graph: Graph) -> Float[Tensor, "B s L"]:
        """Return the vectors of all slots except the event's. Memory grows with the number of existing nodes."""
        members, roles = graph.members[:, 1:], graph.roles[:, 1:]
        items, slots = places_of(on_cpu(graph.members)[:, 1:].any(dim=2), members.device)
        inside = members[items, slots].unsqueeze(-1)
        vectors = local[items].masked_fill(~inside, MASKED).amax(dim=1) * self.roles(roles[items, slots])
        made = local.new_zeros(*members.shape[:2], local.shape[2])
        return made.index_put((items, slots), vectors.to(made.dtype))

    def curves(self) -> dict[str, list[float]]:
        return self.aggregator.curves()


class GraphReasoning(nn.Module):
    """``x_i + W sum_j b_ij x_j``, layer-normalised, with ``b_i = softmax_j( (Q x_i) . (K x_j) / sqrt(d) )``.

    j runs over the neighbours of i. A node without neighbours keeps its vector, layer-normalised (HGR, section 3.1).
    Keys have no bias, as it would shift all logits of a node alike.

    Args:
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
        """Let each node read its neighbours. If ``edges[b, i, j]`` is True, i reads j."""
        logits = (self.query(nodes) @ self.key(nodes).mT * self.scale).masked_fill(~edges, MASKED)
        weights = torch.softmax(logits, dim=2).masked_fill(~edges, 0.0)
        updated: Tensor = self.norm(nodes + self.dropout(self.message(weights @ nodes)))
        return updated
