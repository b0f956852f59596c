"""The bases of encoders, which turn Inputs into Features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

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
        """Encode a batch; real positions of the result are True in its mask."""

    def save_assets(self, folder: Path) -> None:
        """Write the files needed besides the weights (a vocabulary, a tokenizer, a backbone's config) to a folder."""


class TextEncoder(Encoder):
    """An encoder of sentences."""

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""

    @abstractmethod
    def pieces(self, caption: str) -> list[str]:
        """Return a readable word piece for each token of a caption, in the order of ``tokenize``."""

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that the encoder has not learned, each once; none if it cannot tell."""
        return []

    def coverage(self, captions: Sequence[str]) -> Coverage | None:
        """Count how many words of many captions the encoder knows; None if it cannot tell."""
        return None


class TokenStatesEncoder(TextEncoder):
    """A text encoder whose raw token states can be stored if its text model is frozen.

    ``forward`` takes token ids, or stored states ``float [B, N, C]`` with their mask.
    """

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """C, the width of a raw state."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The text model, weights, tokenizer and length that make the states; a feature store remembers this value."""

    @abstractmethod
    def token_states(self, inputs: Inputs) -> Features:
        """Return the raw states of token ids, ``local [B, N, C]``; a feature store holds them without the padding."""

    @abstractmethod
    def why_not_stored(self) -> str | None:
        """Return why stored states cannot replace the text model in training, and what to do; None if they can."""


def states_can_be_stored(encoder: TextEncoder) -> TypeGuard[TokenStatesEncoder]:
    """Return whether stored states can replace the text model of an encoder."""
    return isinstance(encoder, TokenStatesEncoder) and encoder.why_not_stored() is None
