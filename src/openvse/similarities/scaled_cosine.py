"""The cosine of a dual encoder, and the scale and bias that make its logits of it."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.similarities.set_max import SetMax


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
