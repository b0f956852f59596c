"""PVSE's diversity term, which rewards embeddings that attend to different elements."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.objectives.base import Term
from openvse.types import EmbeddingSet, ScoredBatch


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
        """Add the redundancy of the images and of the texts."""
        sides = [redundancy(side) for side in (batch.images, batch.texts) if side.residual is not None]
        if not sides:
            raise RecipeError(
                "diversity acts on residuals, and neither the image nor the text aggregator yields any: "
                "use pie_net on at least one side, or remove the term"
            )
        return torch.stack(sides).sum()

    def diagnostics(self, batch: ScoredBatch) -> dict[str, float]:
        """Return the value of each side."""
        sides = {"images": batch.images, "texts": batch.texts}
        return {name: float(redundancy(side)) for name, side in sides.items() if side.residual is not None}


def redundancy(embeddings: EmbeddingSet) -> Float[Tensor, ""]:
    """Return the mean over the items of ``||G - I||_F / K^2``, where K is the number of an item's embeddings."""
    assert embeddings.residual is not None
    units = normalize(embeddings.residual).masked_fill(~embeddings.mask.unsqueeze(-1), 0.0)
    excess = units @ units.mT - torch.diag_embed(embeddings.mask.to(units.dtype))
    norms: Tensor = torch.linalg.matrix_norm(excess)
    return (norms / embeddings.mask.sum(dim=1) ** 2).mean()
