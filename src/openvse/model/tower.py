"""One side of a model: an encoder, an aggregator, and scaling to unit length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch import nn

from openvse.aggregators import Aggregator
from openvse.encoders.base import Encoder
from openvse.functional import at_least_single, normalize
from openvse.types import EmbeddingSet, Inputs

EncoderT = TypeVar("EncoderT", bound=Encoder)


class Tower(nn.Module, Generic[EncoderT]):
    """Maps collated items of one modality to embeddings; the one place where they are normalised.

    Args:
        encoder: the part that turns Inputs into Features.
        aggregator: the part that turns Features into an EmbeddingSet.
    """

    def __init__(self, encoder: EncoderT, aggregator: Aggregator) -> None:
        super().__init__()
        self.encoder = encoder
        self.aggregator = aggregator

    def forward(self, inputs: Inputs) -> EmbeddingSet:
        """Embed a batch: ``vectors [B, K, D]``, of length 1 unless the aggregator sets ``unit_length`` to False."""
        embedded: EmbeddingSet = self.aggregator(self.encoder(inputs))
        finish = normalize if self.aggregator.unit_length else at_least_single
        return replace(embedded, vectors=finish(embedded.vectors))


def tower_curves(towers: Mapping[str, Tower[Any] | None]) -> dict[str, list[float]]:
    """Return the curves of the towers' aggregators, as ``SIDE.NAME``; a side that a model lacks is None."""
    return {
        f"{side}.{name}": curve
        for side, tower in towers.items()
        if tower is not None
        for name, curve in tower.aggregator.curves().items()
    }
