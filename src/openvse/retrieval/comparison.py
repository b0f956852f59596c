"""What the search asks of a model of PyTorch: the comparison of items with queries, sentences, captions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.datasets import open_corpus
from openvse.runtime.arrays import ArraySet
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet


@runtime_checkable
class ScoresSets(Protocol):
    """What scores the embeddings of images and texts, such as a ``TwoTower``."""

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        """Return the scores of all pairs."""
        ...


@dataclass(frozen=True)
class ModelComparison:
    """The comparison of a PyTorch model, by its own similarity, swapped if items are sentences."""

    model: ScoresSets
    swapped: bool = False

    @property
    def is_inner(self) -> bool:
        """Whether the similarity of the model is the largest inner product, and nothing else."""
        similarity = getattr(self.model, "similarity", None)
        return isinstance(similarity, SetMax) and type(similarity).forward is SetMax.forward

    def __call__(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Float[np.ndarray, "n Q"]:
        """Score all pairs. A similarity with single-precision weights computes in single precision."""
        try:
            return self._score(items, queries)
        except RuntimeError:
            if items.dtype == np.float32:
                raise
            return self._score(items.astype(np.float32), queries)

    @torch.inference_mode()
    def _score(self, items: Float[np.ndarray, "n K D"], queries: ArraySet) -> Float[np.ndarray, "n Q"]:
        held = EmbeddingSet(torch.from_numpy(items), torch.ones(items.shape[:2], dtype=torch.bool))
        vectors = np.ascontiguousarray(queries.vectors, items.dtype)
        asked = EmbeddingSet(torch.from_numpy(vectors), torch.from_numpy(queries.mask))
        scores = self.model.score(asked, held).T if self.swapped else self.model.score(held, asked)
        scored: np.ndarray = scores.numpy()
        return scored


def captions_below(root: Path) -> Mapping[str, Sequence[str]]:
    """Return the captions of the images in a folder, by their path below it with forward slashes."""
    corpus = open_corpus(root, require_images=False, allow_outside=True)
    names: list[str | None] = []
    for path in corpus.image_paths:
        if not isinstance(path, Path):  # in an archive or a table, which an index does not read
            names.append(None)
            continue
        try:
            names.append(path.resolve().relative_to(root.resolve()).as_posix())
        except (ValueError, OSError):  # the data set names an image elsewhere
            names.append(None)
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        if (name := names[image]) is not None:
            captions[name].append(corpus.captions[text])
    return captions
