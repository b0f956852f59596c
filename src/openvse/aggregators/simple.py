"""The base of every aggregator, and poolings without learned weights, or with a single one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import (
    MASKED,
    masked_k_max,
    masked_max,
    masked_mean,
    masked_softmax,
    position_mask,
    soft_pool,
    sort_descending,
)
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

    def pool_views(
        self, views: Sequence[RankedPooling], ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B K L"]:
        """Make one vector by each of K poolings."""
        return torch.stack([view.pool_ranked(ranked, mask) for view in views], dim=1)


class Mean(Pooling):
    """Mean of the elements: ``v = 1/N sum_n x_n`` (VSE-infinity, section 3.2, AvgPool)."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_mean(local, mask)


class Max(Pooling):
    """Largest value of each dimension: ``v_d = max_n x_nd`` (VSE-infinity, section 3.2, MaxPool)."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_max(local, mask)


class KMax(Pooling):
    """Mean of the k largest values of each dimension (VSE-infinity, section 3.2, K-MaxPool).

    For an item with fewer than k elements, the mean is over all of them.

    Args:
        k: the number of values to average, at least 1.

    Raises:
        RecipeError: k is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, k: int = 10) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if k < 1:
            raise RecipeError(f"k_max got k = {k}: it must be at least 1 (1 is max pooling)")
        self.k = k

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return masked_k_max(local, mask, self.k)


class TopPercent(Pooling):
    """Mean of the largest p % of the values of each dimension, ``k = ceil(N p / 100)`` (VSE-infinity, B.3, T-K%).

    Args:
        percent: p, from 1 to 100. 100 is mean pooling.

    Raises:
        RecipeError: p is out of range.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, percent: int = 50) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if not 1 <= percent <= 100:
            raise RecipeError(f"top_percent got percent = {percent}: it must be from 1 to 100")
        self.percent = percent

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Average the top of each dimension, rounded up to a whole element."""
        counts = (mask.sum(dim=1) * self.percent + 99) // 100
        return masked_mean(sort_descending(local, mask).transpose(1, 2), position_mask(counts, mask.shape[1]))


class SoftPool(Pooling):
    """``v_d = sum_n softmax_n(x_nd) x_nd`` (Stergiou et al. 2021), the embedding level of AdPool."""

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Weight each real element by the softmax of its value."""
        return soft_pool(local, mask)


class LogSumExp(Pooling):
    """``v_d = t log sum_n e^(x_nd / t)``, a smooth maximum (score attention, section IV-C, with t = 1).

    Deviation: the paper's text sums "along the feature dimension", which would leave one number per element. Here the
    sum is over the elements.

    Args:
        temperature: t. As it approaches 0, the result approaches the maximum.

    Raises:
        RecipeError: the temperature is not positive.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, temperature: float = 1.0) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if temperature <= 0:
            raise RecipeError(f"log_sum_exp got temperature = {temperature}: it must be above 0 (usual: 1)")
        self.temperature = temperature

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        scaled = (local / self.temperature).masked_fill(~mask.unsqueeze(-1), MASKED)
        return scaled.logsumexp(dim=1) * self.temperature


class GeM(Pooling):
    """``v_d = (1/N sum_n max(x_nd, eps)^p)^(1/p)`` with one learned p (Radenovic et al. 2019, eq. 3).

    It is computed as a log-sum-exp of ``p log x``, so that neither large p nor small x overflows. The learned parameter
    is log p, which keeps p positive. Deviation: negative features are clamped to eps. The published form is for
    features after a ReLU, and explodes on others (VSE-infinity, section 5.2).

    Args:
        exponent: the initial p. 1 is the mean, and large values approach the maximum.
        eps: the lower limit to which features are clamped.

    Raises:
        RecipeError: p or eps is not positive.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, exponent: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if exponent <= 0 or eps <= 0:
            raise RecipeError(f"gem got exponent = {exponent}, eps = {eps}: both must be above 0")
        self.eps = eps
        self.log_exponent = nn.Parameter(torch.tensor(math.log(exponent)))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        exponent = self.log_exponent.exp()
        powers = exponent * local.clamp(min=self.eps).log()
        total = powers.masked_fill(~mask.unsqueeze(-1), MASKED).logsumexp(dim=1)
        return ((total - mask.sum(dim=1, keepdim=True).to(total.dtype).log()) / exponent).exp()


class AdaPool(Pooling):
    """A learned mix of SoftPool and a sum weighted by similarity to the mean (Stergiou and Poppe 2023).

    ``v = b sum_n softmax_n(DSC(m, x_n)) x_n + (1 - b) SoftPool(x)``, where m is the mean of the elements and
    ``DSC(m, x) = 2 |m . x| / (|m|^2 + |x|^2)``. Deviation: b is one number, a sigmoid, where the paper has one for each
    place of a fixed pooling region. A set has no such places.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.mix = nn.Parameter(torch.tensor(0.0))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = masked_mean(local, mask)
        product = torch.einsum("bnl,bl->bn", local, mean)
        norms = local.square().sum(dim=-1) + mean.square().sum(dim=-1, keepdim=True)
        likeness = 2 * product.abs() / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        alike = torch.einsum("bn,bnl->bl", masked_softmax(likeness, mask).to(local.dtype), local)
        return torch.lerp(soft_pool(local, mask), alike, self.mix.sigmoid().to(local.dtype))


class FirstToken(Pooling):
    """``v = x_1``: the CLS token of BERT, the first word of a BiGRU (VSE-infinity, section 5.2, CLS)."""

    order_aware = True

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        return local[torch.arange(local.shape[0], device=local.device), mask.to(torch.int8).argmax(dim=1)]


class LastToken(Pooling):
    """``v = x_N``: CLIP's end-of-text token (Radford et al., 2021, section 2.4), the last word of a BiGRU."""

    order_aware = True

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        last = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(dim=1)
        return local[torch.arange(local.shape[0], device=local.device), last]


class Tokens(Aggregator):
    """Keeps every local feature (K = N), for similarities that let an image and a text attend to each other.

    Args:
        unit_length: whether to scale each feature to unit length, as similarities that compare cosines need
            (``set_max`` then scores the best pair of a grid cell and a word).

    Raises:
        RecipeError: the widths differ, so the encoder needs a projection.
    """

    order_aware = True
    indexable = False
    fixed_k = False

    def __init__(self, *, input_dim: int, embed_dim: int, unit_length: bool = False) -> None:
        super().__init__()
        require_same_width("tokens", input_dim, embed_dim)
        self.unit_length = unit_length

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the local features. Padding stays masked and is 0."""
        return EmbeddingSet(features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0), features.mask)
