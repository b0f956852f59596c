"""The base of every fusion, which reads the tokens of an image and a text together and reduces each to k vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.layers.attention import Attention, checked_dropout
from openvse.registry import Configured
from openvse.types import EmbeddingSet, Features

LAYERS = 2
"""The number of attention layers on each side of a pair: cross-attention, then self-attention."""


@dataclass(frozen=True)
class Prepared:
    """The part of a fusion's work that does not depend on the partner, so that each item computes it once.

    Attributes:
        features: the tokens, their queries for attending to a partner, and their keys and values for a partner.
        mask: True for real tokens.
        keep: the dropout factors of each layer. None outside training.
    """

    features: Float[Tensor, "B 4 N D"]
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
        weights: the weight of each token of the image and of the text, if the vectors are weighted sums.
    """

    image: Float[Tensor, "P k D"]
    text: Float[Tensor, "P k D"]
    weights: tuple[Float[Tensor, "P k N"], Float[Tensor, "P k M"]] | None = None


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

    Raises:
        RecipeError: the width is not a multiple of the number of heads, or dropout is not in [0, 1).
    """

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

    def read(
        self, images: Prepared, texts: Prepared
    ) -> tuple[Float[Tensor, "P N D"], Float[Tensor, "P M D"]]:
        """Let both sides of P pairs attend to each other, and then to themselves."""
        (tokens, query, key, value), (cross, itself) = images.features.unbind(1), _layers(images)
        (tokens_z, query_z, key_z, value_z), (cross_z, itself_z) = texts.features.unbind(1), _layers(texts)
        x = self.image_reads(tokens, query, key_z, value_z, texts.mask, cross)
        z = self.text_reads(tokens_z, query_z, key, value, images.mask, cross_z)
        return (
            self.image_itself.read_itself(x, images.mask, itself),
            self.text_itself.read_itself(z, texts.mask, itself_z),
        )

    @abstractmethod
    def reduce(self, x: Features, z: Features) -> Reduced:
        """Reduce the tokens of the images (x) and of the texts (z) of P pairs to k vectors each."""

    def _begin(self, items: EmbeddingSet, side: int) -> EmbeddingSet:
        if self.class_tokens is None:
            return items
        first = self.class_tokens[side].expand(len(items), 1, -1).to(items.vectors.dtype)
        return EmbeddingSet(
            torch.cat([first, items.vectors], dim=1), nn.functional.pad(items.mask, (1, 0), value=True)
        )

    def _project(self, items: EmbeddingSet, *, reads: Attention, is_read: Attention) -> Prepared:
        tokens = items.vectors.masked_fill(~items.mask.unsqueeze(-1), 0.0)
        features = torch.stack(
            [tokens, reads.query(tokens), is_read.key(tokens), is_read.value(tokens)], dim=1
        )
        keep = None
        if self.training and self.dropout:
            keep = nn.functional.dropout(torch.ones_like(features[:, :LAYERS]), self.dropout)
        return Prepared(features, items.mask, keep)


def _layers(items: Prepared) -> tuple[Tensor | None, Tensor | None]:
    """Return the dropout factors of the two layers."""
    return (None, None) if items.keep is None else (items.keep[:, 0], items.keep[:, 1])
