"""PVSE's diversity term, which rewards embeddings that attend to different elements."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.objectives.base import Term
from openvse.types import ScoredBatch


class Diversity(Term):
    """Measures how far the residuals of an item are from orthogonal, for images and texts.

    ``L_div = 1/K^2 ( ||G_x - I||_2 + ||G_y - I||_2 )`` (PVSE, eq. 7): G is the Gram matrix of the K residuals of an
    item, scaled to unit length; the norm is the Frobenius norm, averaged over the items. The term acts on residuals
    since the embeddings share the item's global vector and could not be orthogonal. A side whose aggregator does not
    yield residuals adds nothing; at K = 1 the term is 0.

    Raises:
        RecipeError: in the forward pass, if neither side has residuals.
    """

    needs_residual: ClassVar[bool] = True

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        sides = self._sides(batch)
        if not sides:
            raise RecipeError(
                "the term acts on residuals, and neither the image nor the text aggregator yields any: "
                "use pie_net or slot_attention on at least one side, or remove the term"
            )
        return torch.stack(list(sides.values())).sum()

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        return self._sides(batch)

    def redundancy(self, residual: Float[Tensor, "B K R"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, ""]:
        """Return the mean over the items of ``||G - I||_F / K^2``, where K is the number of an item's embeddings."""
        units = normalize(residual).masked_fill(~mask.unsqueeze(-1), 0.0)
        norms: Tensor = torch.linalg.matrix_norm(units @ units.mT - torch.diag_embed(mask.to(units.dtype)))
        return (norms / mask.sum(dim=1) ** 2).mean()

    def _sides(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the redundancy of each side that has residuals."""
        sides = {"images": batch.images, "texts": batch.texts}
        return {
            name: self.redundancy(side.residual, side.mask)
            for name, side in sides.items()
            if side.residual is not None
        }
