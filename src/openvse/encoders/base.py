"""What every encoder is: raw items -> Inputs -> Features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.media.images import read_image
from openvse.media.videos import ClipSource
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
    """An encoder of pictures or clips: pixels, or local features stored beforehand, to Features.

    Attributes:
        feature_dim: C, the width of the raw local features, as a feature store holds them.
        fingerprint: which backbone, weights and preprocessing made the raw features; a store remembers it.
            None takes any store of the right width.
        fine_tune: whether the backbone trains, so that stored features would soon be out of date.
        reads_videos: whether an item may be a clip, of which it sees several frames.
        stored_pictures: how many pictures an item is at most while its features are extracted.
        gives_boxes: whether ``raw_features`` tells where in the picture each of them lies.
        covers_picture: whether the raw features are square cells over the whole picture, row by row, perhaps behind a
            class token.
    """

    feature_dim: int
    fingerprint: str | None
    fine_tune: bool
    reads_videos: bool = False
    stored_pictures: int = 1
    gives_boxes: bool = False
    covers_picture: bool = False

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

    def read(
        self, source: ClipSource, generator: torch.Generator | None = None, *, to_store: bool = False
    ) -> Float[Tensor, "... 3 H W"]:
        """Decode an item to pixels: of a picture, or of the frames of a clip.

        Args:
            source: what ``ClipSource`` allows; a picture where the encoder reads no videos.
            generator: decides the random view of training; None gives the deterministic one.
            to_store: the features go to a store, from which training draws.

        Raises:
            BadImageError: the item cannot be used.
        """
        return self.preprocess(read_image(source), generator)

    def collate(self, items: Sequence[Float[Tensor, "... 3 H W"]]) -> Inputs:
        """Join what ``read`` returned into a batch."""
        return Inputs(torch.stack(tuple(items)), None)

    def raw(self, inputs: Inputs) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
        """Return the raw local features of pixels, or the stored ones, and which of them are real."""
        if inputs.mask is not None:
            return inputs.values, inputs.mask
        features = self.raw_features(inputs.values)
        return features.local, features.mask


class TextEncoder(Encoder):
    """An encoder of sentences."""

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""

    @abstractmethod
    def pieces(self, caption: str) -> list[str]:
        """Return what each token of a caption stands for, for people to read; as many as ``tokenize`` makes of it."""
