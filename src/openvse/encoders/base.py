"""The bases of encoders, which turn Inputs into Features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from openvse.registry import Configured
from openvse.tokenization.vocabulary import Coverage, UnknownWord
from openvse.types import Features, Inputs


class Encoder(Configured, nn.Module, ABC):
    """Turns collated Inputs into Features.

    Attributes:
        local_dim: L, the width of the local features.
        gives_pooled: whether the encoder also yields a global vector, for aggregators that need one.
    """

    local_dim: int
    gives_pooled: bool = False

    @abstractmethod
    def forward(self, inputs: Inputs) -> Features:
        """Encode a batch. Real positions of the result are True in its mask."""

    def save_assets(self, folder: Path) -> None:
        """Write the files needed besides the weights (a vocabulary, a tokenizer, a backbone's config) to a folder."""


class TextEncoder(Encoder):
    """An encoder of sentences.

    The build passes four values to each encoder that names them. ``embed_dim`` is D. ``captions`` are all training
    captions, for a new vocabulary. ``assets`` is a folder written by ``save_assets``, whose vocabulary or tokenizer is
    read instead. ``grow`` is whether words of the captions are appended to this vocabulary.

    Attributes:
        most_tokens: the largest number of tokens of a sentence, or None if an export must be given one.
    """

    most_tokens: int | None = None

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""

    @abstractmethod
    def pieces(self, caption: str) -> list[str]:
        """Return a readable word piece for each token of a caption, in the order of ``tokenize``."""

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that the encoder has not learned, each once, or none if it cannot tell."""
        return []

    def why_not_stored(self) -> str | None:
        """Return why stored token states cannot replace the text model in training, or None if they can."""
        return "this text encoder has no text model whose states can be stored: drop the store of texts"

    def coverage(self, captions: Sequence[str]) -> Coverage | None:
        """Count how many words of many captions the encoder knows. None if it cannot tell."""
        return None
