"""The fusions, and their scores of all pairs tile by tile. In training, pairs with a gradient are recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from openvse.aggregators import Aggregator
from openvse.aggregators.simple import Mean
from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.fusion.base import Fusion, Prepared, Reduced
from openvse.layers.attention import AttentionScores
from openvse.registry import Maker
from openvse.types import Features


class ScoreAttentionFusion(Fusion):
    """``y_k = sum_n S_kn(X, Z) x_n``: X attends to Z for its weights, and the reverse (eq. 3 and 4).

    Args:
        num_vectors: k, the number of parallel reductions.
    """

    def __init__(
        self, *, embed_dim: int, num_heads: int = 8, num_vectors: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, class_token=False)
        self.image_scores = AttentionScores(embed_dim, num_heads, num_vectors)
        self.text_scores = AttentionScores(embed_dim, num_heads, num_vectors)

    def reduce(self, x: Features, z: Features) -> Reduced:
        # The order of the sides is fixed: in another order, the sum of the gradients would differ in its last bits.
        of_x = self.image_scores(x.local, x.mask, z.local, z.mask)
        image = of_x @ x.local
        of_z = self.text_scores(z.local, z.mask, x.local, x.mask)
        return Reduced(image, of_z @ z.local, (of_x, of_z))


class Pooled(Fusion):
    """Each side is aggregated separately, after both have attended to each other (section IV-C).

    The paper compares ``mean``, ``max``, ``log_sum_exp``, ``conv1d``, and ``first_token`` with ``class_token: true``.

    Args:
        aggregator: the aggregator of each side, of which two copies are made.

    Raises:
        RecipeError: the aggregator needs a global vector, or does not yield a fixed number of embeddings.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        aggregator: Maker[Aggregator] = Mean,
        num_heads: int = 8,
        dropout: float = 0.1,
        class_token: bool = False,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, class_token=class_token)
        self.image_aggregator: Aggregator = aggregator(input_dim=embed_dim, embed_dim=embed_dim)
        self.text_aggregator: Aggregator = aggregator(input_dim=embed_dim, embed_dim=embed_dim)
        if self.image_aggregator.needs_pooled or not self.image_aggregator.fixed_k:
            raise RecipeError(
                f"pooled cannot reduce with {type(self.image_aggregator).__name__}: take an aggregator that needs no "
                f"global vector and makes the same number of embeddings of every item, such as mean or gpo"
            )

    def reduce(self, x: Features, z: Features) -> Reduced:
        return Reduced(self.image_aggregator(x).vectors, self.text_aggregator(z).vectors)


# The most numbers that the tokens of the pairs in memory may have. A CPU is fastest while they fit its cache.
_TOKENS_ON_CPU = 1 << 20
_TOKENS_ELSEWHERE = 1 << 26


def score_pairs(fusion: Fusion, images: Prepared, texts: Prepared) -> Float[Tensor, "I T"]:
    """Score every image against every text: the mean of the k cosines of their k vectors (score attention, IV-B).

    Memory holds the scores and one tile of pairs, whatever I and T are. The backward pass recomputes only the pairs
    that the loss depends on. With the hardest negatives these are three per positive, whereas a graph of the whole
    batch would hold all I x T.
    """
    sides = (images.features, images.mask, images.keep, texts.features, texts.mask, texts.keep)
    scores: Tensor = _Scores.apply(fusion, *sides, *fusion.parameters())  # type: ignore[no-untyped-call]
    return scores


@torch.no_grad()
def score_listed(
    fusion: Fusion, images: Prepared, texts: Prepared, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
) -> Float[Tensor, "P"]:
    """Score some pairs without a gradient: image ``rows[p]`` with text ``columns[p]``."""
    parts = [_cosines(fusion, images[i], texts[t]) for i, t in _tiles(rows, columns, images, texts)]
    return torch.cat(parts) if parts else images.features.new_zeros(0)


class _Scores(torch.autograd.Function):
    """The score matrix, whose forward pass does not keep the computation of a pair."""

    @staticmethod
    def forward(ctx: Any, fusion: Fusion, *tensors: Tensor | None) -> Float[Tensor, "I T"]:
        ctx.fusion = fusion
        ctx.save_for_backward(*tensors)
        images, texts = _sides(tensors)
        device = images.features.device
        rows = torch.arange(len(images), device=device).repeat_interleave(len(texts))
        columns = torch.arange(len(texts), device=device).repeat(len(images))
        return score_listed(fusion, images, texts, rows, columns).view(len(images), len(texts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "I T"]) -> tuple[Tensor | None, ...]:
        images, texts = _sides(ctx.saved_tensors)
        of_images, of_texts = torch.zeros_like(images.features), torch.zeros_like(texts.features)
        learning = [parameter for parameter in ctx.fusion.parameters() if parameter.requires_grad]
        of_parameters = {parameter: torch.zeros_like(parameter) for parameter in learning}
        rows, columns = gradient.nonzero(as_tuple=True)
        for i, t in _tiles(rows, columns, images, texts):
            some_images, some_texts = images[i], texts[t]
            leaves = [some_images.features.requires_grad_(), some_texts.features.requires_grad_()]
            with torch.enable_grad():
                scores = _cosines(ctx.fusion, some_images, some_texts)
            # Projections that were made beforehand are not affected.
            of_x, of_z, *rest = torch.autograd.grad(
                scores, [*leaves, *learning], gradient[i, t], allow_unused=True
            )
            of_images.index_add_(0, i, of_x)
            of_texts.index_add_(0, t, of_z)
            for parameter, slope in zip(learning, rest, strict=True):
                if slope is not None:
                    of_parameters[parameter] += slope
        return (
            *(None, of_images, None, None, of_texts, None, None),
            *(of_parameters.get(parameter) for parameter in ctx.fusion.parameters()),
        )


def _sides(tensors: tuple[Tensor | None, ...]) -> tuple[Prepared, Prepared]:
    """Return both sides from the first six tensors."""
    features, mask, keep, features_z, mask_z, keep_z, *_ = tensors
    assert features is not None and mask is not None and features_z is not None and mask_z is not None
    return Prepared(features, mask, keep), Prepared(features_z, mask_z, keep_z)


def _cosines(fusion: Fusion, images: Prepared, texts: Prepared) -> Float[Tensor, "P"]:
    """Score P pairs."""
    x, z, _ = fusion(images, texts)
    return (normalize(x) * normalize(z)).sum(dim=-1).mean(dim=-1)


def _tiles(
    rows: Int[Tensor, "P"], columns: Int[Tensor, "P"], images: Prepared, texts: Prepared
) -> Iterator[tuple[Int[Tensor, "p"], Int[Tensor, "p"]]]:
    """Cut pairs into tiles of as many pairs as may be in memory."""
    numbers = images.features[0, 0].numel() + texts.features[0, 0].numel()
    allowed = _TOKENS_ON_CPU if rows.device.type == "cpu" else _TOKENS_ELSEWHERE
    size = max(1, allowed // numbers)
    for start in range(0, len(rows), size):
        yield rows[start : start + size], columns[start : start + size]
