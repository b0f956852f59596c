"""What every encoder is: raw items -> Inputs -> Features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.types import Features, Inputs


class Encoder(nn.Module, ABC):
    """Turns collated Inputs into Features.

    Attributes:
        local_dim: L, the width of the local features it yields.
        gives_pooled: whether it yields a global vector too, for the aggregators that need one.
    """

    local_dim: int
    gives_pooled: bool = False

    @abstractmethod
    def forward(self, inputs: Inputs) -> Features:
        """Encode a batch; real positions of the result are True in its mask."""

    def save_assets(self, folder: Path) -> None:
        """Write what the weights do not hold (a vocabulary, a tokenizer, a backbone's config) to a folder."""


class ImageEncoder(Encoder):
    """An encoder of pictures: pixels, or local features stored beforehand, to Features.

    Attributes:
        feature_dim: C, the width of the raw local features, as a feature store holds them.
        fingerprint: which backbone, weights and preprocessing made the raw features; a store remembers it.
            None takes any store of the right width.
        fine_tune: whether the backbone trains, so that stored features would soon be out of date.
    """

    feature_dim: int
    fingerprint: str | None
    fine_tune: bool

    @abstractmethod
    def preprocess(self, image: Image, generator: torch.Generator | None = None) -> Float[Tensor, "3 H W"]:
        """Turn a decoded RGB picture into pixels; with a generator, a random training view of it."""

    @abstractmethod
    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Return the raw local features of a batch of pixels, before projection and augmentation."""

    def raw_features(self, pixels: Float[Tensor, "B 3 H W"]) -> Features:
        """Return what ``extract`` does, and which of it is real: all of it, unless an encoder knows better."""
        local = self.extract(pixels)
        return Features(local, torch.ones(local.shape[:2], dtype=torch.bool, device=local.device))


class TextEncoder(Encoder):
    """An encoder of sentences."""

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""
