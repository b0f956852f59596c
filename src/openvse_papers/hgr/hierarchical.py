"""HGR's matching of a video and a sentence on three levels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from openvse.errors import RecipeError
from openvse.functional import MASKED, normalize
from openvse.similarities.base import Similarity, slices
from openvse.types import EmbeddingSet

# The most cosines of elements and nodes, and the most numbers of gathered items, in memory at a time.
_COSINES = 1 << 21
_NUMBERS = 1 << 24
_LEVELS = (slice(1, None, 2), slice(2, None, 2))
_SMALL = 1e-9


class Hierarchical(Similarity):
    """The mean of three cosines: of the whole items, of actions and of entities (HGR, Chen et al., CVPR 2020).

    Both sides carry a global vector first, and then alternately a vector for actions and one for entities. An image has
    one of each for every element n (``frame_levels``), a text one for every node p of its role graph (``role_graph``).

    - global level: ``cos(v, t)``,
    - each of the other two: the mean over the nodes p of ``cos(sum_n a_pn x_n, z_p)``, where
      ``a_p = softmax_n( sharpness * [c_pn]_+ / |[c_p]_+| )`` and ``c_pn = cos(x_n, z_p)``.

    The attended vectors are never made: their cosines follow from c and from the inner products of the elements. So a
    pair needs the memory of its cosines c, whatever D is. Pairs are scored in tiles, which the backward pass computes
    again.

    A text without a node of a level has no score there. An index cannot serve the score: an indexable model proposes
    items, and this one reranks them (``openvse search --rerank``).

    Args:
        sharpness: the factor in the softmax. 4 in the released code.
        attend: ``vectors`` compares a node with the attended vector, as in the released code. ``scores`` takes
            ``sum_n a_pn c_pn`` in place of its cosine.
        missing: ``skip`` averages the levels that a pair has, so that a text with only a global vector has the plain
            cosine. ``zero`` counts a missing level as 0, as in the released code.

    Raises:
        RecipeError: the sharpness is not above 0.
    """

    indexable: ClassVar[bool] = False
    is_cosine: ClassVar[bool] = True
    reads_unit_vectors: ClassVar[bool] = False

    def __init__(
        self,
        *,
        sharpness: float = 4.0,
        attend: Literal["vectors", "scores"] = "vectors",
        missing: Literal["skip", "zero"] = "skip",
    ) -> None:
        super().__init__()
        if not (math.isfinite(sharpness) and sharpness > 0):
            raise RecipeError(f"hierarchical got sharpness = {sharpness}: it must be above 0 (usual: 4)")
        self.sharpness, self.attend, self.missing = sharpness, attend, missing
        self.is_cosine = missing == "skip"  # type: ignore[misc]

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs. Memory holds the scores and one tile of pairs."""
        side = _side(images, texts)
        columns = [
            torch.cat([self._tile(images[i], texts[t]) for i in slices(len(images), side)])
            for t in slices(len(texts), side)
        ]
        return torch.cat(columns, dim=1)

    @torch.no_grad()
    def pairs(
        self, images: EmbeddingSet, texts: EmbeddingSet, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        size = max(1, _NUMBERS // (images.vectors[0].numel() + texts.vectors[0].numel()))
        parts = [
            self._score(images[rows[some]], texts[columns[some]], _aligned)
            for some in slices(len(rows), size)
        ]
        return torch.cat(parts) if parts else images.vectors.new_zeros(0)

    def _tile(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "i t"]:
        if not torch.is_grad_enabled():
            return self._score(images, texts, _crossed)

        def score(of_images: Tensor, of_texts: Tensor) -> Tensor:
            sides = EmbeddingSet(of_images, images.mask), EmbeddingSet(of_texts, texts.mask)
            return self._score(*sides, _crossed)

        scores: Tensor = checkpoint(score, images.vectors, texts.vectors, use_reentrant=False)
        return scores

    def _score(self, images: EmbeddingSet, texts: EmbeddingSet, align: Align) -> Float[Tensor, "*p"]:
        """Average the levels of the pairs that ``align`` makes of the two sides."""
        whole = align(normalize(images.vectors[:, :1]), normalize(texts.vectors[:, :1]))[..., 0, 0]
        total, count = whole, torch.ones_like(whole)
        for places in _LEVELS:
            elements, nodes = images.mask[:, places], texts.mask[:, places]
            if not elements.shape[1] or not nodes.shape[1]:
                continue
            x = images.vectors[:, places].masked_fill(~elements.unsqueeze(-1), 0.0)
            z = texts.vectors[:, places].masked_fill(~nodes.unsqueeze(-1), 0.0)
            # The elements and nodes that each pair has, and the number of nodes.
            both = align(elements.to(x.dtype).unsqueeze(-1), nodes.to(x.dtype).unsqueeze(-1)) > 0
            cosines = align(normalize(x), normalize(z))
            matched = self._matched(cosines, both, x, aligned=align is _aligned)
            there = both.any(dim=-1)
            level = (matched * there).sum(dim=-1) / there.sum(dim=-1).clamp(min=1)
            total = total + level
            count = count + there.any(dim=-1)
        return total / (count if self.missing == "skip" else len(_LEVELS) + 1)

    def _matched(
        self, cosines: Float[Tensor, "*p K N"], both: Bool[Tensor, "*p K N"], x: Tensor, *, aligned: bool
    ) -> Float[Tensor, "*p K"]:
        """Return the score of each node."""
        positive = cosines.clamp(min=0).masked_fill(~both, 0.0)
        length = positive.square().sum(dim=-1, keepdim=True).clamp(min=_SMALL**2).sqrt()
        logits = (self.sharpness * positive / length).masked_fill(~both, MASKED)
        weights = logits.softmax(dim=-1).masked_fill(~both, 0.0)
        if self.attend == "scores":
            return (weights * cosines).sum(dim=-1)
        products = x @ x.mT
        # A root of 0 would have no finite slope.
        lengths = products.diagonal(dim1=1, dim2=2).clamp(min=_SMALL**2).sqrt().unsqueeze(1)
        if not aligned:
            products, lengths = products.unsqueeze(1), lengths.unsqueeze(1)
        inner = (weights * cosines * lengths).sum(dim=-1)
        squares = ((weights @ products) * weights).sum(dim=-1)
        return inner / squares.clamp(min=_SMALL**2).sqrt()


Align = Callable[[Tensor, Tensor], Tensor]
"""Inner products ``[*p, K, N]`` of the K vectors of each text and the N vectors of each image of the pairs p."""


def _crossed(images: Float[Tensor, "i N D"], texts: Float[Tensor, "t K D"]) -> Float[Tensor, "i t K N"]:
    """Pair every image with every text."""
    products = images.flatten(0, 1) @ texts.flatten(0, 1).T
    return products.view(*images.shape[:2], *texts.shape[:2]).permute(0, 2, 3, 1)


def _aligned(images: Float[Tensor, "p N D"], texts: Float[Tensor, "p K D"]) -> Float[Tensor, "p K N"]:
    """Pair image p with text p."""
    return texts @ images.mT


def _side(images: EmbeddingSet, texts: EmbeddingSet) -> int:
    """Return the number of images and of texts in a tile."""
    cosines = max(1, images.mask.shape[1] // 2) * max(1, texts.mask.shape[1] // 2)
    return max(1, math.isqrt(_COSINES // cosines))
