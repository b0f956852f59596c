"""Similarities that compute a score for each pair: order embeddings and fusions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from openvse.functional import best_of_pairs, best_of_sets
from openvse.fusion.base import Fusion, ScoreAttentionFusion, score_listed, score_pairs
from openvse.registry import Maker
from openvse.similarities.base import Similarity, slices
from openvse.types import EmbeddingSet

# The number of differences in memory at a time, such that they fit a CPU's cache.
_DIFFERENCES = 1 << 18


class Order(Similarity):
    """``s(i, t) = -|max(0, |t| - |i|)|^2`` (Vendrov et al., Order-Embeddings of Images and Language, ICLR 2016, eq. 2).

    A text is more general than its image: none of its coordinates should exceed the image's, and any excess is
    penalised. The embeddings are unit vectors with absolute values, as in the paper, so that scores lie between -1 and
    0. They are not symmetric. The paper has one embedding per item. With several, the best pair counts, as in
    ``set_max``.
    """

    indexable: ClassVar[bool] = False
    is_cosine: ClassVar[bool] = False

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Memory holds the scores and a tile of the differences, not all I x T x D."""
        general, specific = texts.vectors.flatten(0, 1).abs(), images.vectors.flatten(0, 1).abs()
        violations: Tensor = _Violations.apply(specific, general)  # type: ignore[no-untyped-call]
        return best_of_sets(-violations, images.mask, texts.mask)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        specific, general = images.vectors[rows].abs().unsqueeze(2), texts.vectors[columns].abs().unsqueeze(1)
        violations = (general - specific).clamp_(min=0).square_().sum(dim=-1)
        return best_of_pairs(-violations, images.mask[rows], texts.mask[columns])


class _Violations(torch.autograd.Function):
    """``|max(0, t - i)|^2`` of all pairs. The backward pass recomputes the differences instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, images: Float[Tensor, "A D"], texts: Float[Tensor, "C D"]) -> Float[Tensor, "A C"]:
        ctx.save_for_backward(images, texts)
        violations = images.new_empty(len(images), len(texts))
        for rows, columns, excess in _tiles(images, texts):
            violations[rows, columns] = excess.square_().sum(dim=-1)
        return violations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "A C"]) -> tuple[Tensor, Tensor]:
        images, texts = ctx.saved_tensors
        of_images, of_texts = torch.zeros_like(images), torch.zeros_like(texts)
        for rows, columns, excess in _tiles(images, texts):
            slopes = excess.mul_(2 * gradient[rows, columns].unsqueeze(-1))
            of_images[rows] -= slopes.sum(dim=1)
            of_texts[columns] += slopes.sum(dim=0)
        return of_images, of_texts


def _tiles(
    images: Float[Tensor, "A D"], texts: Float[Tensor, "C D"]
) -> Iterator[tuple[slice, slice, Float[Tensor, "a c D"]]]:
    """Yield ``max(0, t - i)`` for some images and some texts at a time."""
    side = max(1, math.isqrt(_DIFFERENCES // images.shape[1]))
    for rows in slices(len(images), side):
        for columns in slices(len(texts), side):
            yield rows, columns, (texts[columns] - images[rows].unsqueeze(1)).clamp_(min=0)


class Fused(Similarity):
    """The mean cosine of the vectors to which a fusion reduces an image and a text (score attention, section IV-B).

    It reads sets of tokens, so both aggregators are ``tokens``. An index cannot serve it: an indexable model proposes
    items, and this one reranks them (``openvse search --rerank``).

    Args:
        fusion: the fusion that computes the vectors of a pair.
    """

    indexable: ClassVar[bool] = False
    is_cosine: ClassVar[bool] = False
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(self, *, embed_dim: int, fusion: Maker[Fusion] = ScoreAttentionFusion) -> None:
        super().__init__()
        self.fusion = fusion(embed_dim=embed_dim)

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. See ``score_pairs`` for time and memory."""
        return score_pairs(self.fusion, *self.fusion.prepare(images, texts))

    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        """Score some pairs. Each image and each text is prepared once."""
        return score_listed(self.fusion, *self.fusion.prepare(images, texts), rows, columns)
