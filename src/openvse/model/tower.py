"""One side of a model: an encoder, an aggregator, and scaling to unit length. Also evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch import nn
from torch.utils.checkpoint import checkpoint

from openvse.aggregators import Aggregator
from openvse.encoders.base import Encoder
from openvse.functional import at_least_single, normalize
from openvse.types import EmbeddingSet, Inputs

EncoderT = TypeVar("EncoderT", bound=Encoder)


class Tower(nn.Module, Generic[EncoderT]):
    """Maps collated items of one modality to embeddings, and is the only place that normalises them.

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


def embed_in_chunks(tower: Tower[Any], inputs: Inputs, size: int) -> EmbeddingSet:
    """Embed a large batch for training, ``size`` items at a time, in the memory of a chunk.

    No activations of a chunk are kept. The backward pass embeds it again, with the same random numbers. So the gradient
    equals the whole batch's (Gao et al., Scaling deep contrastive learning batch size under memory limited setup,
    2021), unless a part normalises over the batch.
    """
    parts = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    return EmbeddingSet.concatenate([checkpoint(tower, part, use_reentrant=False) for part in parts])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards back into its previous mode, also after an error.

    Gradients are not switched off. A caller that does not need them also enters ``torch.inference_mode``.
    """
    if not any(each.training for each in module.modules()):  # setting it again costs milliseconds
        yield
        return
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
