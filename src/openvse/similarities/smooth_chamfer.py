"""The similarity of two sets in which every embedding has its part."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import MASKED
from openvse.similarities.base import Similarity
from openvse.types import EmbeddingSet


class SmoothChamfer(Similarity):
    """Smooth-Chamfer similarity of K embeddings v_k and L embeddings t_l (DivE; Kim et al., CVPR 2023).

    ``s = 1/(2 a K) sum_k log sum_l e^(a c_kl) + 1/(2 a L) sum_l log sum_k e^(a c_kl)``, where ``c_kl = cos(v_k, t_l)``:
    the soft maximum of each embedding, averaged over both sides. So every embedding gets a gradient, where ``set_max``
    gives one to the best pair alone. At K = L = 1 it is the cosine. Chamfer similarity is the limit for large a.

    A store of vectors proposes items by the largest inner product m, and the score puts them in order. With
    ``h = log(K L) / (2 a)``, which is 0.087 for K = L = 4 and a = 16, ``mean_kl c_kl + h <= s <= m + h``, as each soft
    maximum is at most its maximum, and at least its mean, plus the logarithm of its count over a.

    Args:
        sharpness: a; 16 in the released code. None takes the maxima: Chamfer similarity, ``chamfer`` in recipes.

    Raises:
        RecipeError: the sharpness is not above 0.
    """

    indexable: ClassVar[bool] = False
    near_maximum: ClassVar[bool] = True

    def __init__(self, *, sharpness: float | None = 16.0) -> None:
        super().__init__()
        if sharpness is not None and not (sharpness > 0 and math.isfinite(sharpness)):
            raise RecipeError(f"smooth_chamfer got sharpness = {sharpness}: it must be above 0 (usual: 16)")
        self.sharpness = sharpness

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        # The short axes come first, so that the reductions run along the long ones.
        cosines = images.vectors.transpose(0, 1).unsqueeze(1) @ texts.vectors.transpose(0, 1).mT
        return self._reduced(cosines, images.mask.T[:, None, :, None], texts.mask.T[None, :, None])

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        products = images.vectors[rows] @ texts.vectors[columns].mT
        of_images, of_texts = images.mask[rows].T.unsqueeze(1), texts.mask[columns].T.unsqueeze(0)
        return self._reduced(products.permute(1, 2, 0), of_images, of_texts)

    def _reduced(
        self, cosines: Float[Tensor, "K L *p"], images: Bool[Tensor, "K 1 *i"], texts: Bool[Tensor, "1 L *t"]
    ) -> Float[Tensor, "*p"]:
        """Average the soft maxima of the embeddings that exist, over both sides."""
        rows = self._soft_maximum(cosines, texts, 1).masked_fill(~images.squeeze(1), 0.0).sum(dim=0)
        columns = self._soft_maximum(cosines, images, 0).masked_fill(~texts.squeeze(0), 0.0).sum(dim=0)
        return (rows / images.sum(dim=(0, 1)) + columns / texts.sum(dim=(0, 1))) / 2

    def _soft_maximum(self, cosines: Tensor, exists: Tensor, axis: int) -> Tensor:
        cosines = cosines.masked_fill(~exists, MASKED)
        if self.sharpness is None:
            return cosines.amax(dim=axis)
        return (self.sharpness * cosines).logsumexp(dim=axis) / self.sharpness
