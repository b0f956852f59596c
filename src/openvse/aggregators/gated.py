"""A pooling that is added to a model's own vector through a gate, which begins closed."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator
from openvse.aggregators.gpo import GPO
from openvse.aggregators.simple import Mean
from openvse.errors import ModelError, RecipeError
from openvse.functional import normalize
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features


class Gated(Aggregator):
    """``v_k = b + g |b| p_k / |p_k|``: the vector b of a base, plus K vectors p of a pooling behind a gate g.

    The gate is one learned number, and it begins at 0. So an untrained model gives exactly the embeddings of its base,
    for instance those of CLIP, and training decides how much the pooling adds. At the first step only the gate has a
    gradient; as soon as it is not 0, the pooling has one, too. The gate is relative to the length of b: at 1, both
    vectors have the same weight.

    With several vectors p, each of the K embeddings begins as b, so the largest of their cosines is the score of the
    base. A pooling that reads a global vector, such as ``pie_net``, gets b.

    The residual form with a gate at 0 is that of ReZero (Bachlechner et al., 2021, section 3).

    Args:
        base: the aggregator of the base; in a recipe with a start, ``start`` means the aggregator of the start.
        pool: the aggregator whose vectors are added.
        share_projection: whether the pooling reads the same local features as the base; otherwise it has its own
            Linear(L, D), which begins as the identity if L equals D.
        train_base: whether the weights of the base train.
        gate_start: the initial gate.

    Raises:
        RecipeError: the number of vectors of one of the aggregators varies, or their length has a meaning.

    Examples:
        >>> base, gated = Mean(input_dim=8, embed_dim=8), Gated(input_dim=8, embed_dim=8)
        >>> features = Features(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
        >>> torch.equal(gated(features).vectors, base(features).vectors)
        True
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        base: Maker[Aggregator] = Mean,
        pool: Maker[Aggregator] = GPO,
        share_projection: bool = True,
        train_base: bool = True,
        gate_start: float = 0.0,
    ) -> None:
        super().__init__()
        self.base = base(input_dim=input_dim, embed_dim=embed_dim)
        self.projection: nn.Module = nn.Identity() if share_projection else _projection(input_dim, embed_dim)
        self.pool = pool(input_dim=input_dim if share_projection else embed_dim, embed_dim=embed_dim)
        _check("base", self.base)
        _check("pool", self.pool)
        self.gate = nn.Parameter(torch.tensor(float(gate_start)))
        if not train_base:
            self.base.requires_grad_(False)
        self.share_projection = share_projection
        self.order_aware = self.base.order_aware or self.pool.order_aware
        self.indexable = self.base.indexable and self.pool.indexable
        self.needs_pooled = self.base.needs_pooled
        self.yields_residual = self.base.yields_residual or self.pool.yields_residual

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the embeddings of the base with those of the pooling added: ``vectors [B, K, D]``.

        Raises:
            ModelError: base and pooling give different numbers of vectors, and neither gives a single one.
        """
        base: EmbeddingSet = self.base(features)
        pooled: EmbeddingSet = self.pool(self._for_pool(features, base))
        counts = base.vectors.shape[1], pooled.vectors.shape[1]
        if counts[0] != counts[1] and 1 not in counts:
            raise ModelError(
                f"gated adds {counts[1]} vectors of its pool to {counts[0]} of its base: give both the same number, "
                f"or one of them a single vector"
            )
        length = base.vectors.norm(dim=-1, keepdim=True)
        vectors = base.vectors + self.gate * length * normalize(pooled.vectors)
        residual = base.residual if pooled.residual is None else pooled.residual
        return EmbeddingSet(vectors, base.mask & pooled.mask, residual)

    def curves(self) -> dict[str, list[float]]:
        """Return the gate, and the curves of both aggregators as ``base.NAME`` and ``pool.NAME``."""
        inner = {"base": self.base.curves(), "pool": self.pool.curves()}
        return {
            "gate": [float(self.gate.detach())],
            **{f"{part}.{name}": curve for part, curves in inner.items() for name, curve in curves.items()},
        }

    def _for_pool(self, features: Features, base: EmbeddingSet) -> Features:
        """Return what the pooling reads: the projected features, and the base as their global vector."""
        own = replace(features, pooled=base.vectors.mean(dim=1))
        if self.share_projection:
            return own
        real: Float[Tensor, "B N L"] = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        return replace(own, local=self.projection(real), ranked=None)


def _check(name: str, part: Aggregator) -> None:
    if not part.fixed_k or not part.unit_length:
        raise RecipeError(
            f"gated got the {name} {type(part).__name__}, which gives no fixed number of vectors of unit length: take "
            f"an aggregator of embeddings, such as gpo, pie_net or multi_view"
        )


def _projection(input_dim: int, embed_dim: int) -> nn.Linear:
    linear = nn.Linear(input_dim, embed_dim)
    if input_dim == embed_dim:
        nn.init.eye_(linear.weight)
    else:
        nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
