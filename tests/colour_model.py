"""A model of images and words that needs no weights: mean colours, and the colours that words name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from openvse.functional import normalize, set_max_scores
from openvse.media.images import ImageLike, read_image
from openvse.types import EmbeddingSet

COLOURS = {"red": (200, 20, 20), "green": (20, 180, 40), "blue": (30, 40, 210), "white": (245, 245, 245)}

Pixels = tuple[str, np.ndarray]
"""What is read of an image: the name of its file, and its mean colour."""


@dataclass
class ColourModel:
    """Embeds an image by its mean colour; what it read and encoded is recorded in ``reads`` and ``batches``."""

    fingerprint: str = "colours-1"
    indexable: bool = True
    reads_videos: bool = False
    has_whole: bool = True
    num_embeddings: int = 1
    has_whole: bool = True
    batches: list[list[str]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)

    def encode_image(self, images: Sequence[ImageLike], batch_size: int = 64) -> EmbeddingSet:
        assert len(images) <= batch_size
        return self.encode_pixels([self.read_image(image) for image in images])

    def read_image(self, image: ImageLike) -> Pixels:
        name = image.name if isinstance(image, Path) else ""
        self.reads.append(name)  # from several threads
        return name, np.asarray(read_image(image), dtype=np.float32).mean((0, 1))

    def encode_pixels(self, images: Sequence[Pixels]) -> EmbeddingSet:
        self.batches.append([name for name, _ in images if name])
        return self.embed(np.stack([mean for _, mean in images]))

    def encode_text(self, captions: Sequence[str], batch_size: int = 256) -> EmbeddingSet:
        return self.embed(np.array([COLOURS[caption] for caption in captions], dtype=np.float32))

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return set_max_scores(images, texts)

    def embed(self, colours: np.ndarray) -> EmbeddingSet:
        vectors = normalize(torch.from_numpy(colours) - 128.0).unsqueeze(1)
        vectors = vectors.repeat(1, self.num_embeddings, 1)
        return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))

    @property
    def encoded(self) -> list[str]:
        """Names of all images encoded so far, in order."""
        return [name for batch in self.batches for name in batch]


def paint(path: Path, colour: str) -> Path:
    """Write a small image of one colour; no two of different names are the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = PngInfo()
    told.add_text("Comment", path.name)
    Image.new("RGB", (12, 9), COLOURS[colour]).save(path, pnginfo=told)
    return path
