"""Two aggregators side by side, so that the score of a model is a weighted mean of two scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.aggregators.base import Aggregator, SingleVector, require_single_vectors
from openvse.aggregators.pooled_linear import PooledLinear
from openvse.aggregators.simple import KMax
from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.layers.linear import xavier_linear
from openvse.registry import Maker
from openvse.types import Features


class Beside(SingleVector):
    """``v = [sqrt(1 - s) b/|b| ; sqrt(s) p/|p|]``, with the vector b of a base and the vector p of a pooling.

    With it on both sides of a model, the cosine of an image and a sentence is ``(1 - s) cos(b) + s cos(p)``: a
    weighted mean of the scores of two models, which fits into one index. Both read the same features; the pooling has a
    linear layer of its own before it.

    Args:
        embed_dim: D, the sum of both widths.
        base: the aggregator that makes b.
        base_dim: the width of b, by default half of D; p has the rest.
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
        own = replace(features, local=self.projection(real), ranked=None)
        base, pooled = (
            normalize(vectors.squeeze(1))
            for vectors in (self.base(features).vectors, self.inner(own).vectors)
        )
        return torch.cat([(1 - self.share).sqrt() * base, self.share.sqrt() * pooled], dim=-1)
