"""PVSE's term that pulls the distributions of image and text embeddings together."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import places_of
from openvse.objectives.base import Term
from openvse.types import ScoredBatch

# A squared distance below this many rounding errors of its terms counts as 0.
ROUNDING = 32.0


class MMD(Term):
    """The squared maximum mean discrepancy between all image embeddings and all text embeddings of a batch.

    ``L_mmd = mean k(x, x') - 2 mean k(x, y) + mean k(y, y')`` (PVSE, section 3.4; Gretton et al. 2012, the biased
    estimate, which is never negative). The means replace the paper's sums over K^2 N^2 pairs, and stay correct if
    the two sides differ in number. Kernels, with the bandwidth g:

    - ``rbf``: ``e^(-g |x - y|^2)``, the Gaussian that the paper names;
    - ``legacy_exp``: ``e^(-g |x - y|)``, which its released code computes with g = 0.5.

    Distances come from one matrix product, so that memory is bounded by the pairs, not by pairs times D.

    Args:
        kernel: ``rbf`` or ``legacy_exp``.
        gamma: g, above 0.

    Raises:
        RecipeError: gamma is not positive.
    """

    def __init__(self, *, kernel: Literal["rbf", "legacy_exp"] = "rbf", gamma: float = 0.5) -> None:
        super().__init__()
        if gamma <= 0:
            raise RecipeError(f"mmd got gamma = {gamma}: it must be above 0 (usual: 0.5)")
        self.kernel = kernel
        self.gamma = gamma

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        images = batch.images.vectors[places_of(batch.images.mask)]
        texts = batch.texts.vectors[places_of(batch.texts.mask)]
        within = self._mean_kernel(images, images) + self._mean_kernel(texts, texts)
        return within - 2 * self._mean_kernel(images, texts)

    def _mean_kernel(self, x: Float[Tensor, "M D"], y: Float[Tensor, "m D"]) -> Float[Tensor, ""]:
        lengths = x.square().sum(dim=1, keepdim=True) + y.square().sum(dim=1)
        squares = lengths - 2 * (x @ y.T)
        if self.kernel == "rbf":
            return torch.exp(-self.gamma * squares.clamp(min=0)).mean()
        # If two vectors are equal, only rounding is left, which a root would magnify with an unbounded slope.
        equal = squares <= ROUNDING * torch.finfo(squares.dtype).eps * lengths
        distances = squares.masked_fill(equal, 1.0).sqrt().masked_fill(equal, 0.0)
        return torch.exp(-self.gamma * distances).mean()
