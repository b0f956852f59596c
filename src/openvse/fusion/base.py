"""The fusions, which read the tokens of an image and a text together and reduce each to k vectors, and their scores.

Pairs are scored tile by tile. In training, pairs with a gradient are recomputed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.aggregators import Aggregator
from openvse.aggregators.simple import Mean
from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.layers.attention import Attention, AttentionScores, checked_dropout
from openvse.registry import Configured, Maker
from openvse.types import EmbeddingSet, Features, PairWeights

LAYERS = 2
"""The number of attention layers on each side of a pair: cross-attention, then self-attention."""


@dataclass(frozen=True)
class Prepared:
    """The part of a fusion's work that does not depend on the partner, so that each item computes it once.

    Attributes:
        features: S tensors for each token. A fusion has four: the tokens, their queries for attending to a partner, and
            their keys and values for a partner.
        mask: True for real tokens.
        keep: the dropout factors of each layer. None outside training.
    """

    features: Float[Tensor, "B S N D"]
    mask: Bool[Tensor, "B N"]
    keep: Float[Tensor, "B layers N D"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Int[Tensor, "P"]) -> Prepared:
        """Return the items at these rows. A row may be repeated."""
        keep = None if self.keep is None else self.keep[rows]
        return Prepared(self.features[rows], self.mask[rows], keep)


class Reduced(NamedTuple):
    """k vectors for each side of P pairs.

    Attributes:
        image: the vectors of the images.
        text: the vectors of the texts.
        weights: the weight of each token of the image and of the text, if the vectors are weighted sums (``attends``).
    """

    image: Float[Tensor, "P k D"]
    text: Float[Tensor, "P k D"]
    weights: PairWeights | None = None


@runtime_checkable
class PairScorer(Protocol):
    """What ``score_pairs`` and ``score_listed`` score with, also a module: a fusion, or a similarity."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the weights that ``score`` reads."""

    def score(self, images: Prepared, texts: Prepared) -> Float[Tensor, "P"]:
        """Score P pairs: item p of the images with item p of the texts."""


class Fusion(Configured, nn.Module, ABC):
    """Cross-attention between an image and a text, self-attention of each, and a reduction to k vectors per side.

    This is the architecture of score attention (section III-B), on which the paper compares reductions. Everything
    for pairs. Dropout is drawn once per item and step, not per pair. The pairs of a batch are then compared under the
    same masks, and the backward pass can recompute any of them.

    Args:
        embed_dim: D, the width of the tokens.
        num_heads: h, the number of heads of every attention. It divides D.
        dropout: the probability that a feature of a layer's update is dropped in training.
        class_token: whether to put a learned token first on each side, which a reduction may use as the result.

    Attributes:
        attends: True when ``Reduced`` has weights.

    Raises:
        RecipeError: the width is not a multiple of the number of heads, or dropout is not in [0, 1).
    """

    attends: ClassVar[bool] = False

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float, class_token: bool) -> None:
        super().__init__()
        self.dropout = checked_dropout(dropout)
        self.image_reads, self.text_reads = Attention(embed_dim, num_heads), Attention(embed_dim, num_heads)
        self.image_itself, self.text_itself = Attention(embed_dim, num_heads), Attention(embed_dim, num_heads)
        self.class_tokens = nn.Parameter(0.02 * torch.randn(2, embed_dim)) if class_token else None

    def prepare(self, images: EmbeddingSet, texts: EmbeddingSet) -> tuple[Prepared, Prepared]:
        """Do the work that does not depend on the partner. Call it once per step: dropout is drawn here."""
        image, text = self._begin(images, 0), self._begin(texts, 1)
        return (
            self._project(image, reads=self.image_reads, is_read=self.text_reads),
            self._project(text, reads=self.text_reads, is_read=self.image_reads),
        )

    def forward(self, images: Prepared, texts: Prepared) -> Reduced:
        """Reduce P pairs: item p of the images with item p of the texts."""
        x, z = self.read(images, texts)
        return self.reduce(Features(x, images.mask), Features(z, texts.mask))

    def read(self, images: Prepared, texts: Prepared) -> tuple[Float[Tensor, "P N D"], Float[Tensor, "P M D"]]:
        """Let both sides of P pairs attend to each other, and then to themselves."""
        (tokens, query, key, value), (cross, itself) = images.features.unbind(1), _layers(images)
        (tokens_z, query_z, key_z, value_z), (cross_z, itself_z) = texts.features.unbind(1), _layers(texts)
        x = self.image_reads(tokens, query, key_z, value_z, texts.mask, cross)
        z = self.text_reads(tokens_z, query_z, key, value, images.mask, cross_z)
        return (
            self.image_itself.read_itself(x, images.mask, itself),
            self.text_itself.read_itself(z, texts.mask, itself_z),
        )

    def score(self, images: Prepared, texts: Prepared) -> Float[Tensor, "P"]:
        """Return the mean of the k cosines of each of P pairs (score attention, IV-B)."""
        x, z, _ = self(images, texts)
        return (normalize(x) * normalize(z)).sum(dim=-1).mean(dim=-1)

    @abstractmethod
    def reduce(self, x: Features, z: Features) -> Reduced:
        """Reduce the tokens of the images (x) and of the texts (z) of P pairs to k vectors each."""

    def _begin(self, items: EmbeddingSet, side: int) -> EmbeddingSet:
        if self.class_tokens is None:
            return items
        first = self.class_tokens[side].expand(len(items), 1, -1).to(items.vectors.dtype)
        return EmbeddingSet(torch.cat([first, items.vectors], dim=1), nn.functional.pad(items.mask, (1, 0), value=True))

    def _project(self, items: EmbeddingSet, *, reads: Attention, is_read: Attention) -> Prepared:
        tokens = items.vectors.masked_fill(~items.mask.unsqueeze(-1), 0.0)
        features = torch.stack([tokens, reads.query(tokens), is_read.key(tokens), is_read.value(tokens)], dim=1)
        keep = None
        if self.training and self.dropout:
            keep = nn.functional.dropout(torch.ones_like(features[:, :LAYERS]), self.dropout)
        return Prepared(features, items.mask, keep)


def _layers(items: Prepared) -> tuple[Tensor | None, Tensor | None]:
    """Return the dropout factors of the two layers."""
    return (None, None) if items.keep is None else (items.keep[:, 0], items.keep[:, 1])


class ScoreAttentionFusion(Fusion):
    """``y_k = sum_n S_kn(X, Z) x_n``: X attends to Z for its weights, and the reverse (eq. 3 and 4).

    Args:
        num_vectors: k, the number of parallel reductions.
    """

    attends: ClassVar[bool] = True

    def __init__(self, *, embed_dim: int, num_heads: int = 8, num_vectors: int = 1, dropout: float = 0.1) -> None:
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


def score_pairs(scorer: PairScorer, images: Prepared, texts: Prepared) -> Float[Tensor, "I T"]:
    """Score every image against every text.

    Memory holds the scores and one tile of pairs, whatever I and T are. The backward pass recomputes only the pairs
    that the loss depends on. With the hardest negatives these are three per positive, whereas a graph of the whole
    batch would hold all I x T.
    """
    sides = (images.features, images.mask, images.keep, texts.features, texts.mask, texts.keep)
    scores: Tensor = _Scores.apply(scorer, *sides, *scorer.parameters())  # type: ignore[no-untyped-call]
    return scores


@torch.no_grad()
def score_listed(
    scorer: PairScorer, images: Prepared, texts: Prepared, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
) -> Float[Tensor, "P"]:
    """Score some pairs without a gradient: image ``rows[p]`` with text ``columns[p]``."""
    parts = [scorer.score(images[i], texts[t]) for i, t in _tiles(rows, columns, images, texts)]
    return torch.cat(parts) if parts else images.features.new_zeros(0)


class _Scores(torch.autograd.Function):
    """The score matrix, whose forward pass does not keep the computation of a pair."""

    @staticmethod
    def forward(ctx: Any, scorer: PairScorer, *tensors: Tensor | None) -> Float[Tensor, "I T"]:
        ctx.scorer = scorer
        ctx.save_for_backward(*tensors)
        images, texts = _sides(tensors)
        device = images.features.device
        rows = torch.arange(len(images), device=device).repeat_interleave(len(texts))
        columns = torch.arange(len(texts), device=device).repeat(len(images))
        return score_listed(scorer, images, texts, rows, columns).view(len(images), len(texts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "I T"]) -> tuple[Tensor | None, ...]:
        images, texts = _sides(ctx.saved_tensors)
        of_images, of_texts = torch.zeros_like(images.features), torch.zeros_like(texts.features)
        learning = [parameter for parameter in ctx.scorer.parameters() if parameter.requires_grad]
        of_parameters = {parameter: torch.zeros_like(parameter) for parameter in learning}
        rows, columns = gradient.nonzero(as_tuple=True)
        for i, t in _tiles(rows, columns, images, texts):
            some_images, some_texts = images[i], texts[t]
            leaves = [some_images.features.requires_grad_(), some_texts.features.requires_grad_()]
            with torch.enable_grad():
                scores = ctx.scorer.score(some_images, some_texts)
            # Projections that were made beforehand are not affected.
            of_x, of_z, *rest = torch.autograd.grad(scores, [*leaves, *learning], gradient[i, t], allow_unused=True)
            of_images.index_add_(0, i, of_x)
            of_texts.index_add_(0, t, of_z)
            for parameter, slope in zip(learning, rest, strict=True):
                if slope is not None:
                    of_parameters[parameter] += slope
        return (
            *(None, of_images, None, None, of_texts, None, None),
            *(of_parameters.get(parameter) for parameter in ctx.scorer.parameters()),
        )


def _sides(tensors: tuple[Tensor | None, ...]) -> tuple[Prepared, Prepared]:
    """Return both sides from the first six tensors."""
    features, mask, keep, features_z, mask_z, keep_z, *_ = tensors
    assert features is not None and mask is not None and features_z is not None and mask_z is not None
    return Prepared(features, mask, keep), Prepared(features_z, mask_z, keep_z)


def _tiles(
    rows: Int[Tensor, "P"], columns: Int[Tensor, "P"], images: Prepared, texts: Prepared
) -> Iterator[tuple[Int[Tensor, "p"], Int[Tensor, "p"]]]:
    """Cut pairs into tiles of as many pairs as may be in memory."""
    numbers = images.features[0, 0].numel() + texts.features[0, 0].numel()
    allowed = _TOKENS_ON_CPU if rows.device.type == "cpu" else _TOKENS_ELSEWHERE
    size = max(1, allowed // numbers)
    for start in range(0, len(rows), size):
        yield rows[start : start + size], columns[start : start + size]
