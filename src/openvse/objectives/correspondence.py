"""The loss of correspondence autoencoders, and their decoders."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import masked_mean, places_of
from openvse.objectives.base import Term
from openvse.types import EmbeddingSet, ScoredBatch


class Correspondence(Term):
    """Reconstructs the inputs of a pair from its codes, and pulls the two codes together (Feng, Wang, Li, 2014).

    ``L = (1 - alpha) R + alpha |h_x - h_y|^2``, averaged over the positive pairs (x, y), where h are codes and
    ``R`` is, with a linear decoder for each term,

    - ``own`` (Corr-AE): ``|x - x'(h_x)|^2 + |y - y'(h_y)|^2``;
    - ``other`` (Corr-Cross-AE): ``|x - x'(h_y)|^2 + |y - y'(h_x)|^2``;
    - ``both`` (Corr-Full-AE): the sum of the two.

    No pair is a negative: without R, equal codes would be best.

    Args:
        embed_dim: D, the width of the codes, which is that of the recipe.
        image_dim: the width of x, the raw features of images.
        text_dim: the width of y, the raw features of texts.
        reconstruct: what is reconstructed from a code.
        alpha: the weight of the distance of the codes, from 0 to 1.

    Raises:
        RecipeError: alpha is not in [0, 1]; in the forward pass, the sets carry no source, or one of another width.
    """

    needs_source: ClassVar[bool] = True

    def __init__(
        self,
        *,
        embed_dim: int,
        image_dim: int,
        text_dim: int,
        reconstruct: Literal["own", "other", "both"] = "own",
        alpha: float = 0.2,
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise RecipeError(f"correspondence got alpha = {alpha}: give a number from 0 to 1")
        self.alpha = alpha
        own, other = reconstruct != "other", reconstruct != "own"
        self.widths = (image_dim, text_dim)
        self.own = self._decoders(embed_dim) if own else None
        self.other = self._decoders(embed_dim) if other else None

    def forward(self, batch: ScoredBatch) -> Float[Tensor, ""]:
        rows, columns = places_of(batch.positives)
        sides = (self._read(batch.images, 0)[rows], self._read(batch.texts, 1)[columns])
        codes = (_codes(batch.images)[rows], _codes(batch.texts)[columns])
        errors = torch.zeros_like(codes[0][:, 0])
        for decoders, shift in ((self.own, 0), (self.other, 1)):
            for side, decoder in enumerate(decoders or ()):
                errors = errors + (sides[side] - decoder(codes[(side + shift) % 2])).square().sum(dim=1)
        distance = (codes[0] - codes[1]).square().sum(dim=1)
        return ((1 - self.alpha) * errors + self.alpha * distance).mean()

    def diagnostics(self, batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the mean squared distance of the codes of a pair."""
        rows, columns = places_of(batch.positives)
        difference = _codes(batch.images)[rows] - _codes(batch.texts)[columns]
        return {"distance": difference.square().sum(dim=1).mean()}

    def _decoders(self, embed_dim: int) -> nn.ModuleList:
        return nn.ModuleList(nn.Linear(embed_dim, width) for width in self.widths)

    def _read(self, embeddings: EmbeddingSet, side: int) -> Float[Tensor, "B S"]:
        width, key = self.widths[side], ("image_dim", "text_dim")[side]
        if embeddings.source is None or embeddings.source.shape[1] != width:
            seen = "none" if embeddings.source is None else f"{embeddings.source.shape[1]} wide"
            raise RecipeError(
                f"correspondence reconstructs raw features {width} wide ({key}), and the embeddings carry {seen}: use "
                f"autoencoder on both sides, and set {key} to the width of what it reads"
            )
        return embeddings.source.detach()


def _codes(embeddings: EmbeddingSet) -> Float[Tensor, "B D"]:
    """Return the code of each item before it is scaled to unit length."""
    assert embeddings.residual is not None
    return masked_mean(embeddings.residual, embeddings.mask)
