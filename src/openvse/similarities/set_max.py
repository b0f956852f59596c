"""The largest inner product of two sets of embeddings, and the similarities that give it a meaning of their own."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import best_of_pairs, set_max_scores
from openvse.similarities.base import Similarity
from openvse.types import EmbeddingSet


class SetMax(Similarity):
    """``s(V, T) = max_{k,l} cos(v_k, t_l)`` (PVSE section 3.2; MV-VSE eq. 6); the plain cosine at K = 1.

    Its exact candidates come from one inner-product search per embedding, fused by maximum.
    """

    indexable: ClassVar[bool] = True

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        return set_max_scores(images, texts)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        products = images.vectors[rows] @ texts.vectors[columns].transpose(1, 2)
        return best_of_pairs(products, images.mask[rows], texts.mask[columns])


class CSD(SetMax):
    """``s(i, t) = 1 - csd(i, t) / 2``, the score of the embeddings that ``gaussian`` makes.

    ``csd(i, t) = |m_i - m_t|^2 + sum_d (exp z_id + exp z_td)`` is the squared distance that samples of the two
    distributions have on average (PCME++, Chun, ICLR 2024, eq. 1). The score is the inner product of ``[m_i, u_i, 1]``
    and ``[m_t, 1, u_t]``; it is the cosine of the means where there is no variance.
    """

    indexable: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = False
    reads_unit_vectors: ClassVar[bool] = False
    reads_gaussians: ClassVar[bool] = True


class ScaledCosine(SetMax):
    """The scores of ``set_max``, with the scale and bias by which a published dual encoder turns them into logits.

    A score is still the cosine: a scale above 0 and a bias do not change a ranking, and objectives and thresholds
    keep their meaning. ``logits`` returns ``scale * s + bias``, the logits of CLIP (Radford et al., 2021, figure 3)
    or SigLIP (Zhai et al., 2023, section 3.2), from which probabilities are computed.

    Args:
        scale: the factor of the cosine, which is the inverse of a temperature.
        bias: the number that is added to the product.
        link: the function from logits to probabilities: ``sigmoid`` for each pair separately (SigLIP), or ``softmax``
            over the candidates of a query (CLIP).

    Raises:
        RecipeError: the scale is not above 0, or one of the numbers is not finite.
    """

    indexable: ClassVar[bool] = True

    def __init__(
        self, *, scale: float = 1.0, bias: float = 0.0, link: Literal["sigmoid", "softmax"] = "softmax"
    ) -> None:
        super().__init__()
        if not (math.isfinite(scale) and math.isfinite(bias) and scale > 0):
            raise RecipeError(
                f"scale is {scale} and bias {bias}: give a finite scale above 0, so that the better score has the "
                f"larger logit, and a finite bias"
            )
        self.scale, self.bias, self.link = scale, bias, link

    def logits(self, scores: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return ``scale * s + bias`` for any scores of this similarity."""
        return self.scale * scores + self.bias
