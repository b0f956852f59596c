"""Aggregators around other aggregators: projected, gated, convolved, several, as a distribution, or side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.gpo import GPO
from openvse.aggregators.simple import (
    Aggregator,
    KMax,
    Mean,
    RankedPooling,
    SingleVector,
    require_same_width,
    require_single_vectors,
)
from openvse.errors import ModelError, RecipeError
from openvse.functional import at_least_single, is_full, masked_mean, normalize, sort_descending
from openvse.layers.attention import xavier_linear
from openvse.registry import Maker
from openvse.types import EmbeddingSet, Features, moved, on_cpu

CLASS_TEMPERATURE = 2.0
"""The temperature of the probabilities of classes."""

_LEAST = 1e-6
"""Smaller absolute values count as this one where a power is taken."""


class PooledLinear(SingleVector):
    """``v = W u + b`` with ``u = p / |p|``, where p is a pooling of ``sign(x) |x|^power``.

    With ``classes``, W reads ``[u ; c]``. c is the mean over the elements of ``softmax((H x + h) / 2)``, the
    probabilities by a classifier of the raw features. It begins at 0, and the closed form takes it from the backbone.
    With ``middle``, mean and standard deviation of channels in the middle of the network follow u, ``[u ; s ; c]``.

    It reads raw features (``projection: none``), so everything before W stays as it is while W trains, and W has a
    closed form (``start: {name: closed_form}``). A power of 0.5 keeps few large values
    from deciding the direction of u (Perronnin et al., Improving the Fisher kernel, 2010, section 3.2).

    Args:
        pool: the aggregator that makes p. It makes one vector for each item, as wide as the local features.
        power: the exponent of the absolute values.
        residual: whether u is added, ``v = u + W u + b``. W and b then begin at 0 and change the result of ``pool``.
        classes: the number of classes. 0 leaves c out.
        middle: the width of s, which a backbone with ``middle: true`` makes (384 for EfficientNet-Lite0). 0 leaves it
            out.

    Raises:
        RecipeError: the power is not above 0, ``pool`` does not make one vector for each item, ``classes`` or
            ``middle`` is negative, or the map is residual, and L is not D or there is one of the two.
        ModelError: the features have another middle.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        pool: Maker[Aggregator] = Mean,
        power: float = 1.0,
        residual: bool = False,
        classes: int = 0,
        middle: int = 0,
    ) -> None:
        super().__init__()
        if residual:
            require_same_width("pooled_linear with residual: true", input_dim, embed_dim)
        if min(classes, middle) < 0 or (residual and classes + middle):
            raise RecipeError(
                f"pooled_linear got classes = {classes}, middle = {middle}: give 0 or more, and 0 with residual: true"
            )
        if not power > 0:
            raise RecipeError(f"pooled_linear got power = {power:g}: it must be above 0 (1 changes nothing)")
        inner = pool(input_dim=input_dim, embed_dim=input_dim)
        require_single_vectors("pooled_linear", {"pool": inner})
        self.inner, self.power, self.residual, self.classes, self.middle = inner, power, residual, classes, middle
        self.linear = nn.Linear(input_dim + middle + classes, embed_dim)
        (nn.init.zeros_ if residual else nn.init.xavier_uniform_)(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.classifier = nn.Linear(input_dim, classes) if classes else None
        for weight in () if self.classifier is None else self.classifier.parameters():
            nn.init.zeros_(weight)
        self.order_aware, self.needs_pooled = inner.order_aware, inner.needs_pooled

    def describe(self, features: Features) -> Float[Tensor, "B L"]:
        """Return what the linear map reads: u, the pooled item of length 1, s and the probabilities of its classes."""
        local = features.local
        if self.power != 1 or self.classifier is not None:
            local = local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        if self.power != 1:
            sizes = local.abs().clamp(min=_LEAST)  # the slope of a root at 0 is infinite
            features = replace(features, local=local.sign() * sizes**self.power)
        described = [normalize(self.inner(features).vectors.squeeze(1))]
        if self.middle:
            if features.middle is None or features.middle.shape[-1] != self.middle:
                raise ModelError(f"pooled_linear with middle = {self.middle} needs a backbone with middle: true")
            means, squares = features.middle.chunk(2, dim=-1)
            seen = torch.cat([means, (squares - means**2).clamp(min=0).sqrt()], dim=-1)
            described.append(masked_mean(seen, features.mask))
        if self.classifier is not None:
            likely = (self.classifier(local) / CLASS_TEMPERATURE).softmax(-1)
            described.append(masked_mean(likely, features.mask))
        return torch.cat(described, dim=-1)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        return self._pool(Features(local, mask))

    def _pool(self, features: Features) -> Float[Tensor, "B D"]:
        described = self.describe(features)
        mapped: Tensor = self.linear(described)
        return described + mapped if self.residual else mapped


class Gated(Aggregator):
    """``v_k = b + g |b| p_k / |p_k|``: the vector b of a base, plus K vectors p of a pooling behind a gate g.

    The gate is one learned number that begins at 0. An untrained model therefore gives exactly the embeddings of its
    base, for instance CLIP's, and training decides how much the pooling adds. At the first step only the gate has a
    gradient. The pooling gets one as soon as the gate is not 0. The gate is relative to the length of b: at 1, both
    vectors have the same weight.

    With several vectors p, each of the K embeddings begins as b, so the largest of their cosines is the score of the
    base. A pooling that reads a global vector, such as ``pie_net``, gets b.

    The residual form with a gate at 0 comes from ReZero (Bachlechner et al., 2021, section 3).

    Args:
        base: the aggregator of the base. In a recipe with a start, ``start`` means the aggregator of the start.
        pool: the aggregator whose vectors are added.
        share_projection: whether the pooling reads the same local features as the base. Otherwise it has its own
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
        """Return ``vectors [B, K, D]``: the embeddings of the base plus the gated embeddings of the pooling.

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
        """Return the input of the pooling: the projected features, with the base as their global vector."""
        own = replace(features, pooled=base.vectors.mean(dim=1))
        if self.share_projection:
            return own
        real: Float[Tensor, "B N L"] = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        return replace(own, local=self.projection(real))


def _check(name: str, part: Aggregator) -> None:
    if not part.fixed_k or not part.unit_length or part.widens > 1:
        raise RecipeError(
            f"gated got the {name} {type(part).__name__}, which gives no fixed number of vectors of unit length and "
            f"joint width: take an aggregator of embeddings, such as gpo, pie_net or multi_view"
        )


def _pass_on(inner: Aggregator, outer: Aggregator) -> None:
    """Give an aggregator the attributes of the one whose embeddings it returns."""
    outer.order_aware, outer.indexable, outer.fixed_k = inner.order_aware, inner.indexable, inner.fixed_k
    outer.needs_pooled, outer.yields_residual = inner.needs_pooled, inner.yields_residual
    outer.unit_length, outer.widens = inner.unit_length, inner.widens


def _projection(input_dim: int, embed_dim: int) -> nn.Linear:
    linear = nn.Linear(input_dim, embed_dim)
    if input_dim == embed_dim:
        nn.init.eye_(linear.weight)
    else:
        nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class GCN(Aggregator):
    """Graph convolutions over all pairs of elements, then any aggregator (VSE-infinity, Table 1, and VSRN, eq. 1, 2).

    A layer is ``x_n + W_r 1/N sum_m R_nm W_g x_m`` with the affinities ``R_nm = (W_t x_n) . (W_p x_m)``.
    Deviation: VSRN normalises ``W_r ..`` over the batch. Here an item does not see its batch-mates.

    Args:
        aggregator: the part that pools the convolved elements: ``mean``, or ``seq2seq`` as in VSRN.
        num_layers: the number of layers. 1 has the published 4.2 M parameters at a width of 1024. VSRN stacks 4.
        layer_norm: whether to normalise the update of each element, with a gain that starts at 0 as VSRN's does. Each
            layer then begins as the identity, and several layers cannot overflow.

    Raises:
        RecipeError: ``num_layers`` is below 1.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = Mean,
        num_layers: int = 1,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise RecipeError(f"gcn got num_layers = {num_layers}: it must be at least 1 (usual: 1 to 4)")
        self.layers = nn.ModuleList(_Layer(input_dim, layer_norm) for _ in range(num_layers))
        inner = aggregator(input_dim=input_dim, embed_dim=embed_dim)
        self.aggregator: Aggregator = inner
        _pass_on(inner, self)

    def forward(self, features: Features) -> EmbeddingSet:
        local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        for layer in self.layers:
            local = layer(local, features.mask)
        return cast(EmbeddingSet, self.aggregator(replace(features, local=local)))


class _Layer(nn.Module):
    """One graph convolution with a residual connection."""

    def __init__(self, width: int, layer_norm: bool) -> None:
        super().__init__()
        self.row, self.column = nn.Linear(width, width), nn.Linear(width, width)
        self.message, self.update = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        for gain in self.norm.parameters():
            nn.init.zeros_(gain)

    def forward(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        """Add to each element the messages of the other elements."""
        weights = mask.to(local.dtype).unsqueeze(1) / mask.sum(dim=1).view(-1, 1, 1)
        affinity = self.row(local) @ self.column(local).transpose(1, 2) * weights
        return cast(Tensor, local + self.norm(self.update(affinity @ self.message(local))))


class MultiView(Aggregator):
    """K aggregators over one set of features, ``v_k = f_k({x_n})`` (MV-VSE, eq. 4).

    Each view is a copy with its own weights.

    Args:
        num_views: K.
        share_projection: whether all views read the same features (the paper). Otherwise each has its own Linear(L, D),
            and the encoder does not need a projection.

    Raises:
        RecipeError: there is less than one view, or the views have no weights and would all be equal.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        aggregator: Maker[Aggregator] = GPO,
        num_views: int = 3,
        share_projection: bool = True,
    ) -> None:
        super().__init__()
        if num_views < 1:
            raise RecipeError(f"multi_view got num_views = {num_views}: it must be at least 1 (usual: 3)")
        self.projections = nn.ModuleList(
            nn.Identity() if share_projection else xavier_linear(input_dim, embed_dim) for _ in range(num_views)
        )
        width = input_dim if share_projection else embed_dim
        views = [aggregator(input_dim=width, embed_dim=embed_dim) for _ in range(num_views)]
        self.views = nn.ModuleList(views)
        _pass_on(views[0], self)
        self.shares_sort = share_projection and all(isinstance(view, RankedPooling) for view in views)
        if num_views > 1 and not any(True for _ in self.parameters()):
            raise RecipeError(
                f"multi_view got {num_views} views without weights, which are all equal: "
                f"set share_projection: false, or choose an aggregator that learns, such as gpo"
            )

    def forward(self, features: Features) -> EmbeddingSet:
        if self.shares_sort:
            poolings = [view for view in self.views if isinstance(view, RankedPooling)]
            ranked = sort_descending(features.local, features.mask)
            return EmbeddingSet.full(poolings[0].pool_views(poolings, ranked, features.mask))
        views = [
            view(replace(features, local=projection(features.local)))
            for projection, view in zip(self.projections, self.views, strict=True)
        ]
        residuals = [view.residual for view in views if view.residual is not None]
        vectors = torch.cat([view.vectors for view in views], dim=1)
        residual = torch.cat(residuals, dim=1) if residuals else None
        if all(is_full(view.mask) for view in views):
            return EmbeddingSet.full(vectors, residual)
        masks = torch.cat([on_cpu(view.mask) for view in views], dim=1)
        return EmbeddingSet(vectors, moved(masks, features.mask.device), residual)

    def curves(self) -> dict[str, list[float]]:
        """Return the curves of all views, as ``view1.NAME``."""
        return {
            f"view{number}.{name}": curve
            for number, view in enumerate(self.views, start=1)
            for name, curve in cast(Aggregator, view).curves().items()
        }


class Gaussian(Aggregator):
    """The mean m, of unit length, and the log-variances z of a Gaussian (PCME++, Chun, ICLR 2024, section 3.1).

    A linear layer of its own precedes each pooling. The embedding is ``[m, u, 1]`` of an image and ``[m, 1, u]`` of a
    text, with ``u = -sum_d exp(z_d) / 2``. So the inner product of an image and a text is
    ``m_i . m_t + u_i + u_t = 1 - csd(i, t) / 2`` (eq. 1), and a search over inner products ranks by the distance of the
    distributions, in both directions. The log-variances are the residual of the embedding set.

    Deviation: the released model makes the variance from a copy of the last block of each CLIP tower. Here both
    poolings read the same local features.

    Args:
        embed_dim: D, the width of an embedding. The mean and the log-variances are D - 2 wide.
        side: ``image`` or ``text``. In a recipe, the build passes the aggregator's side.
        mean: the aggregator that makes m.
        log_variance: the aggregator that makes z.
        start: the initial value of every log-variance. The weights of z begin at 0.

    Raises:
        RecipeError: D is below 3, or an inner aggregator does not make one vector for each item.
    """

    yields_residual = True
    yields_gaussian = True
    unit_length = False

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        side: Literal["image", "text"] = "image",
        mean: Maker[Aggregator] = GPO,
        log_variance: Maker[Aggregator] = GPO,
        start: float = -6.0,
    ) -> None:
        super().__init__()
        width = embed_dim - 2
        if width < 1:
            raise RecipeError(f"gaussian got embed_dim = {embed_dim}: give at least 3, as it needs 2 of its own")
        self.side = side
        self.to_mean, self.to_log_variance = nn.Linear(input_dim, width), nn.Linear(input_dim, width)
        nn.init.xavier_uniform_(self.to_mean.weight)
        nn.init.zeros_(self.to_mean.bias)
        nn.init.zeros_(self.to_log_variance.weight)
        nn.init.constant_(self.to_log_variance.bias, start)
        self.mean = mean(input_dim=width, embed_dim=width)
        self.log_variance = log_variance(input_dim=width, embed_dim=width)
        require_single_vectors("gaussian", {"mean": self.mean, "log_variance": self.log_variance})
        self.order_aware = self.mean.order_aware or self.log_variance.order_aware

    def forward(self, features: Features) -> EmbeddingSet:
        """Return the embedding of each item, ``[B, 1, D]``, with its log-variances as residual, ``[B, 1, D - 2]``."""
        real = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        mean = self.mean(Features(self.to_mean(real), features.mask))
        pooled = self.log_variance(Features(self.to_log_variance(real), features.mask)).vectors
        log_variance: Float[Tensor, "B 1 E"] = at_least_single(pooled)
        half = -log_variance.exp().sum(dim=-1, keepdim=True) / 2
        ends = [half, torch.ones_like(half)]
        vectors = torch.cat([normalize(mean.vectors), *(ends if self.side == "image" else ends[::-1])], dim=-1)
        return EmbeddingSet(vectors, mean.mask, log_variance)


class Beside(SingleVector):
    """``v = [sqrt(1 - s) b/|b| ; sqrt(s) p/|p|]``, with the vector b of a base and the vector p of a pooling.

    With it on both sides of a model, the cosine of an image and a sentence is ``(1 - s) cos(b) + s cos(p)``: a weighted
    mean of the scores of two models, which fits into one index. Both read the same features. A linear layer precedes
    the pooling.

    Args:
        embed_dim: D, the sum of both widths.
        base: the aggregator that makes b.
        base_dim: the width of b, by default half of D. The rest is the width of p.
        pool: the aggregator that makes p from features of its width.
        share: s.
        train_base: whether the weights of the base train.

    Raises:
        RecipeError: a part does not make one vector for each item, a width is not between 1 and D - 1, or the share is
            not between 0 and 1.
    """

    share: Tensor

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        base: Maker[Aggregator] = PooledLinear,
        base_dim: int | None = None,
        pool: Maker[Aggregator] = KMax,
        share: float = 0.5,
        train_base: bool = True,
    ) -> None:
        super().__init__()
        base_dim = embed_dim // 2 if base_dim is None else base_dim
        if not 0 < base_dim < embed_dim:
            raise RecipeError(
                f"beside got base_dim = {base_dim}: it must be at least 1 and below embed_dim ({embed_dim})"
            )
        if not 0 <= share <= 1:
            raise RecipeError(f"beside got share = {share:g}: it must be between 0 and 1")
        width = embed_dim - base_dim
        self.base = base(input_dim=input_dim, embed_dim=base_dim)
        self.projection = xavier_linear(input_dim, width)
        self.inner = pool(input_dim=width, embed_dim=width)
        require_single_vectors("beside", {"base": self.base, "pool": self.inner})
        self.base.requires_grad_(train_base)
        self.register_buffer("share", torch.tensor(float(share)))
        self.order_aware = self.base.order_aware or self.inner.order_aware

    def pool(self, local: Float[Tensor, "B N L"], mask: Tensor) -> Float[Tensor, "B D"]:
        return self._pool(Features(local, mask))

    def _pool(self, features: Features) -> Float[Tensor, "B D"]:
        real = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        own = replace(features, local=self.projection(real))
        base, pooled = (
            normalize(vectors.squeeze(1)) for vectors in (self.base(features).vectors, self.inner(own).vectors)
        )
        return torch.cat([(1 - self.share).sqrt() * base, self.share.sqrt() * pooled], dim=-1)
