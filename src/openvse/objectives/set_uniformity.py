"""DivE's term, which keeps the embeddings of an item apart."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.functional import normalize
from openvse.objectives.diversity import Diversity


class SetUniformity(Diversity):
    """Measures how close the residuals of an item are to each other, for images and texts.

    ``L_div = mean over k < l of e^(-2 |r_k - r_l|^2)`` (DivE; Kim et al., CVPR 2023), averaged over the
    items of a side and added over both, where r are the K residuals of an item, scaled to unit length. Opposite
    residuals, too, are apart, which ``diversity`` does not reward. Sides without residuals: as for ``diversity``.
    """

    def redundancy(self, residual: Float[Tensor, "B K R"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, ""]:
        """Average the Gaussians of the pairs of residuals that exist; ``|r_k - r_l|^2`` is ``2 - 2 r_k . r_l``."""
        units = normalize(residual)
        pairs = (mask.unsqueeze(1) & mask.unsqueeze(2)).triu(diagonal=1)
        gaussians = torch.exp(4 * (units @ units.mT - 1)).masked_fill(~pairs, 0.0)
        return (gaussians.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)).mean()
