"""The base of every encoder: Inputs -> Features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from openvse.encoders.coverage import Coverage, UnknownWord
from openvse.registry import Configured
from openvse.types import Features, Inputs


class Encoder(Configured, nn.Module, ABC):
    """Turns collated Inputs into Features.

    Attributes:
        local_dim: L, the width of the local features it yields.
        gives_pooled: whether it also yields a global vector, for the aggregators that need one.
    """

    local_dim: int
    gives_pooled: bool = False

    @abstractmethod
    def forward(self, inputs: Inputs) -> Features:
        """Encode a batch; real positions of the result are True in its mask."""

    def save_assets(self, folder: Path) -> None:
        """Write what the weights do not hold (a vocabulary, a tokenizer, a backbone's config) to a folder."""


class TextEncoder(Encoder):
    """An encoder of sentences."""

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""

    @abstractmethod
    def pieces(self, caption: str) -> list[str]:
        """Return a readable word piece for each token of a caption, in the order of ``tokenize``."""

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that the encoder has not learned, each once; none where it cannot tell."""
        return []

    def coverage(self, captions: Sequence[str]) -> Coverage | None:
        """Count what the encoder knows of many captions; None where it cannot tell."""
        return None
