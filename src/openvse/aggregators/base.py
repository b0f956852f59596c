"""The base of every aggregator, which turns Features into an EmbeddingSet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import sort_descending
from openvse.registry import Configured
from openvse.types import EmbeddingSet, Features


class Aggregator(Configured, nn.Module, ABC):
    """Turns the local features of each item into K embeddings of width D.

    The build passes ``input_dim``, L, and ``embed_dim``, D, to those with such arguments. ``Pooling`` requires L = D.

    Attributes:
        order_aware: True when the order of the elements matters. False treats the elements as a set.
        indexable: True when K is fixed and the result depends only on the item, so that an index can hold it.
        needs_pooled: True when the aggregator also reads the global vector ``Features.pooled``.
        fixed_k: True when every item gets the same number of embeddings.
        yields_residual: True when the embedding sets carry a residual.
        yields_source: True when the embedding sets carry a source. Their residual is then the code made from it.
        yields_gaussian: True when an embedding is a distribution: its mean and the variance terms that ``csd`` reads.
        widens: how many times as wide as the joint space an embedding is.
        unit_length: True when a tower scales its embeddings to unit length, False when their length has a meaning.
    """

    order_aware: bool = False
    indexable: bool = True
    needs_pooled: bool = False
    fixed_k: bool = True
    yields_residual: bool = False
    yields_source: bool = False
    yields_gaussian: bool = False
    widens: int = 1
    unit_length: bool = True

    @abstractmethod
    def forward(self, features: Features) -> EmbeddingSet:
        """Aggregate a batch. An item's result must not depend on padding or on the other items of the batch."""

    def curves(self) -> dict[str, list[float]]:
        """Return the learned curves that papers plot, such as weights by rank. A run logs them after each epoch.

        An aggregator around another one, its ``aggregator``, has the curves of that one.
        """
        inner = getattr(self, "aggregator", None)
        return inner.curves() if isinstance(inner, Aggregator) else {}


@runtime_checkable
class Attends(Protocol):
    """An aggregator whose embeddings are weighted sums of local features, and which returns the weights."""

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the weight of each local feature in each embedding. The weights of an embedding sum to 1."""
        ...


class SingleVector(Aggregator):
    """An aggregator that makes one vector from the local features of an item: K = 1."""

    @abstractmethod
    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        """Make one vector from the real elements of each item."""

    def forward(self, features: Features) -> EmbeddingSet:
        """Pool each item into one embedding (K = 1)."""
        return EmbeddingSet.full(self._pool(features).unsqueeze(1))

    def _pool(self, features: Features) -> Float[Tensor, "B D"]:
        return self.pool(features.local, features.mask)


class Pooling(SingleVector):
    """An aggregator that pools the elements into one vector of the same width: L must equal D.

    Raises:
        RecipeError: the widths differ, so the encoder needs a projection.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        require_same_width(type(self).__name__, input_dim, embed_dim)


def require_same_width(name: str, input_dim: int, embed_dim: int) -> None:
    """Raise RecipeError unless local features are as wide as the joint space, for parts that keep the width."""
    if input_dim != embed_dim:
        raise RecipeError(f"{name} pools features {input_dim} wide, not {embed_dim}: give the encoder a projection")


def require_single_vectors(name: str, parts: Mapping[str, Aggregator]) -> None:
    """Raise RecipeError unless each part, named by its option, makes one vector for each item."""
    for option, part in parts.items():
        if not isinstance(part, SingleVector):
            raise RecipeError(
                f"{name} got the {option} {type(part).__name__}: take one that makes one vector an item, such as k_max"
            )


class RankedPooling(Pooling):
    """A pooling of the sorted values of each dimension. Aggregators of the same features can share the sort."""

    @abstractmethod
    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Make one vector from the result of ``sort_descending``."""

    @staticmethod
    def sum_by_dimension(
        ranked: Float[Tensor, "B L N"], weights: Float[Tensor, "U M L"], group: Int[Tensor, "B"]
    ) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with its weights, given once for each of U distinct sizes.

        ``group`` is the index of each item's size. A batched matrix product would compute one vector product per item
        and dimension, and its gradient is slower.
        """
        curves = weights.transpose(1, 2).to(ranked.dtype).contiguous()[group]
        return (ranked[..., : curves.shape[2]] * curves).sum(dim=2)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return self.pool_ranked(sort_descending(local, mask), mask)

    def _pool(self, features: Features) -> Float[Tensor, "B D"]:
        if features.ranked is None:
            return super()._pool(features)
        return self.pool_ranked(features.ranked, features.mask)
