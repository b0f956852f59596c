"""Featurewise sort pooling."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import RankedPooling
from openvse.errors import RecipeError
from openvse.functional import distinct_sizes, interpolate


class FSPool(RankedPooling):
    """``v_d = sum_k w_d(k / (N - 1)) max_k(x_d)``: sorted values, weighted separately in each dimension.

    w_d is piecewise linear between learned knots on [0, 1], so that one curve serves sets of any size (Zhang,
    Hare and Pruegel-Bennett 2020, eq. 2 to 4). The weights are free: they need not be positive or sum to 1.

    Args:
        num_pieces: the number of linear pieces of a curve, one fewer than its knots.

    Raises:
        RecipeError: ``num_pieces`` is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, num_pieces: int = 20) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if num_pieces < 1:
            raise RecipeError(f"fs_pool got num_pieces = {num_pieces}: it must be at least 1 (usual: 20)")
        self.knots = nn.Parameter(torch.randn(num_pieces + 1, input_dim))

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with its curve, computed once for each distinct size."""
        if torch.compiler.is_compiling():  # the number of distinct sizes must not decide a shape
            curves = interpolate(self.knots, mask.sum(dim=1), mask.shape[1])
            return (ranked * curves.transpose(1, 2).to(ranked.dtype)).sum(dim=2)
        sizes, group = distinct_sizes(mask)
        return self.sum_by_dimension(ranked, interpolate(self.knots, sizes), group)
