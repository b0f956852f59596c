"""A small corpus with its features and an encoder, for the tests of batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL.Image import Image
from torch import nn

from openvse.backbones import Backbone
from openvse.backbones.base import cells
from openvse.corpus.corpus import Corpus
from openvse.errors import StoreError
from openvse.media.images import read_image
from openvse.media.videos import ClipSource
from openvse.types import Features, Inputs, Relevance


class MemoryFeatures:
    """A FeatureSource whose item ``i<n>`` has one local feature, n; it counts how often it is read."""

    dim = 1

    def __init__(self, num_images: int, shift: int = 3) -> None:
        self._num, self._shift = num_images, shift
        self.reads = 0

    def __contains__(self, item: object) -> bool:
        return item in {f"i{number}" for number in range(self._num)}

    def positions(self, ids: Sequence[str]) -> np.ndarray:
        """Items lie in another order than in the corpus."""
        if not all(item in self for item in ids):
            raise StoreError("some are missing")
        return np.array([int(item[1:]) + self._shift for item in ids], dtype=np.int64)

    def gather(self, positions: np.ndarray) -> Inputs:
        self.reads += 1
        values = torch.from_numpy(positions - self._shift).float().view(-1, 1, 1)
        return Inputs(values, torch.ones(len(positions), 1, dtype=torch.bool))


class MeanColour(Backbone):
    """Pixels are the mean colour of an image; a random view adds noise."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), feature_dim=3, fingerprint="mean")

    def preprocess(self, image: Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).mean((0, 1))).float().view(3, 1, 1)

    def read(
        self,
        source: ClipSource,
        generator: torch.Generator | None = None,
        *,
        to_store: bool = False,
        exact: bool = True,
    ) -> torch.Tensor:
        pixels = self.preprocess(read_image(source))
        return pixels if generator is None else pixels + torch.rand(3, 1, 1, generator=generator)

    def see(self, inputs: Inputs) -> Features:
        return cells(inputs.values)


def make_corpus(pairs: Sequence[tuple[int, int]], num_images: int, num_texts: int) -> Corpus:
    """Return a corpus of images ``i0, i1, ...`` and texts ``t0, t1, ...`` with these pairs."""
    relevance = Relevance(
        np.array([image for image, _ in pairs], dtype=np.int64),
        np.array([text for _, text in pairs], dtype=np.int64),
        num_images,
        num_texts,
    )
    return Corpus(
        "toy",
        tuple(f"i{number}" for number in range(num_images)),
        tuple(Path(f"i{number}.png") for number in range(num_images)),
        tuple(f"t{number}" for number in range(num_texts)),
        relevance,
        ("",) * num_images,
    )


def make_tokens(num_texts: int) -> list[torch.Tensor]:
    """Text t is t + 1, repeated 1 to 4 times."""
    return [torch.full((number % 4 + 1,), number + 1) for number in range(num_texts)]


def five_captions() -> Corpus:
    """Twelve images with five captions each, in order."""
    return make_corpus([(number // 5, number) for number in range(60)], 12, 60)
