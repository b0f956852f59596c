"""One convolution over the whole sequence."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.aggregators.base import SingleVector
from openvse.errors import RecipeError


class Conv1d(SingleVector):
    """``v = sum_n W_n x_n + b``: a convolution whose kernel is as long as the sequence (score attention, IV-C).

    A shorter sequence uses the first N matrices; the elements of a longer one beyond ``length`` are not read.

    Args:
        length: the number of elements that the kernel spans; its weights are length x L x D.

    Raises:
        RecipeError: a length below 1.
    """

    order_aware = True

    def __init__(self, *, input_dim: int, embed_dim: int, length: int = 64) -> None:
        super().__init__()
        if length < 1:
            raise RecipeError(f"conv1d got length = {length}: give the longest sequence, at least 1")
        bound = 1 / math.sqrt(length * input_dim)  # as PyTorch starts a convolution of this size
        self.kernel = nn.Parameter(torch.empty(length, input_dim, embed_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(embed_dim).uniform_(-bound, bound))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        """Convolve the real elements, each with the matrix of its position."""
        real = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        if torch.compiler.is_compiling():  # the program is for sets of any size
            real = F.pad(real, (0, 0, 0, len(self.kernel)))
        real = real[:, : len(self.kernel)]
        return torch.einsum("bnl,nld->bd", real, self.kernel[: real.shape[1]]) + self.bias
