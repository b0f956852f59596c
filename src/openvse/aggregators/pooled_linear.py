"""One linear map of a pooled item: what a closed form can solve."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Aggregator, SingleVector, require_same_width, require_single_vectors
from openvse.aggregators.simple import Mean
from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.registry import Maker
from openvse.types import Features


class PooledLinear(SingleVector):
    """``v = W u + b`` with ``u = p / |p|``, where p is a pooling of ``sign(x) |x|^power``.

    It reads raw features (``projection: none``), so everything before W stays as it is while W trains, and W has a
    closed form (``start: {name: closed_form}``). A power of 0.5 keeps few large values
    from deciding the direction of u (Perronnin et al., Improving the Fisher kernel, 2010, section 3.2).

    Args:
        pool: the aggregator that makes p, which is as wide as the local features; one vector for each item.
        power: the exponent of the absolute values.
        residual: whether u is added, ``v = u + W u + b``, so that W and b begin at 0 and change what ``pool`` makes.

    Raises:
        RecipeError: the power is not above 0, ``pool`` does not make one vector for each item, or L is not D though the
            map is residual.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        pool: Maker[Aggregator] = Mean,
        power: float = 1.0,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if residual:
            require_same_width("pooled_linear with residual: true", input_dim, embed_dim)
        if not power > 0:
            raise RecipeError(f"pooled_linear got power = {power:g}: it must be above 0 (1 changes nothing)")
        inner = pool(input_dim=input_dim, embed_dim=input_dim)
        require_single_vectors("pooled_linear", {"pool": inner})
        self.inner, self.power, self.residual = inner, power, residual
        self.linear = nn.Linear(input_dim, embed_dim)
        (nn.init.zeros_ if residual else nn.init.xavier_uniform_)(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.order_aware, self.needs_pooled = inner.order_aware, inner.needs_pooled

    def describe(self, features: Features) -> Float[Tensor, "B L"]:
        """Return u, the pooled item of length 1 that the linear map reads."""
        if self.power != 1:
            local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
            features = replace(features, local=local.sign() * local.abs() ** self.power, ranked=None)
        pooled: Tensor = self.inner(features).vectors.squeeze(1)
        return normalize(pooled)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        return self._pool(Features(local, mask))

    def _pool(self, features: Features) -> Float[Tensor, "B D"]:
        described = self.describe(features)
        mapped: Tensor = self.linear(described)
        return described + mapped if self.residual else mapped
