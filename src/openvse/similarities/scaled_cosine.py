"""The cosine of a dual encoder, and the scale and bias that make its logits of it."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.similarities.set_max import SetMax


class ScaledCosine(SetMax):
    """The scores of ``set_max``; beside them the numbers with which a published dual encoder turns them into logits.

    A score is the cosine, as everywhere: a scale above 0 and a bias change no ranking, and objectives and thresholds
    keep their meaning. ``logits`` gives ``scale * s + bias``, CLIP's (Radford et al., 2021, figure 3) or SigLIP's (Zhai
    et al., 2023, section 3.2), of which probabilities are made.

    Args:
        scale: what a cosine is multiplied by; the inverse of a temperature.
        bias: what is then added.
        link: how logits become probabilities: ``sigmoid``, for each pair by itself (SigLIP), or ``softmax``, over the
            candidates of a query (CLIP).

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
