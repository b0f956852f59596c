"""Embedding sets as arrays, and the scores between them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import DTypeLike

Kind: TypeAlias = Literal["inner", "order", "csd"]
"""How two embeddings are compared: by their inner product, as order embeddings, or as Gaussians (``turned``)."""

_DIFFERENCES = 1 << 20


@dataclass(frozen=True, repr=False)
class ArraySet:
    """K embeddings for each item, as an ``EmbeddingSet`` without PyTorch.

    ``numpy.asarray`` makes an array of one: ``[B, D]`` if K = 1, and otherwise ``[B, K, D]``, with 0 for missing ones.

    Attributes:
        vectors: ``[B, K, D]``, of unit length unless they are Gaussians.
        mask: ``[B, K]``, True where the embedding exists.
    """

    vectors: Float[np.ndarray, "B K D"]
    mask: Bool[np.ndarray, "B K"]

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``numpy()``."""
        items, several, width = self.vectors.shape
        return (items, width) if several == 1 else (items, several, width)

    def numpy(self) -> Shaped[np.ndarray, "B *K D"]:
        """Return what ``numpy.asarray`` makes of it."""
        return np.asarray(self)

    def __repr__(self) -> str:
        return f"ArraySet(shape={self.shape}, {self.vectors.dtype})"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Shaped[np.ndarray, "B *K D"]:
        one = self.vectors.shape[1] == 1
        vectors = self.vectors[:, 0] if one else np.where(self.mask[..., None], self.vectors, 0)
        return np.array(vectors, dtype=dtype, copy=copy)

    @overload
    def __getitem__(self, rows: int) -> Float[np.ndarray, "*K D"]: ...
    @overload
    def __getitem__(self, rows: slice | Int[np.ndarray, "b"]) -> ArraySet: ...
    def __getitem__(self, rows: int | slice | Int[np.ndarray, "b"]) -> ArraySet | Float[np.ndarray, "*K D"]:
        """Return one item as ``numpy()`` has it, or a set of some."""
        vectors, mask = self.vectors[rows], self.mask[rows]
        if isinstance(rows, Integral):
            return np.asarray(vectors[0] if len(vectors) == 1 else np.where(mask[:, np.newaxis], vectors, 0))
        return ArraySet(vectors, mask)

    @classmethod
    def full(cls, vectors: Float[np.ndarray, "B K D"]) -> ArraySet:
        """Return a set in which every embedding exists."""
        return cls(vectors, np.ones(vectors.shape[:2], dtype=bool))

    @classmethod
    def concatenate(cls, parts: Sequence[ArraySet]) -> ArraySet:
        """Join sets. Items with fewer embeddings get masked ones."""
        most = max(part.mask.shape[1] for part in parts)

        def widen(arrays: Sequence[np.ndarray]) -> np.ndarray:
            missing = [(0, 0), (0, 0), (0, 0)]
            wide = []
            for array in arrays:
                missing[1] = (0, most - array.shape[1])
                wide.append(np.pad(array, missing[: array.ndim]))
            return np.concatenate(wide)

        return cls(widen([part.vectors for part in parts]), widen([part.mask for part in parts]))


def score_sets(images: ArraySet, texts: ArraySet, kind: Kind = "inner") -> Float[np.ndarray, "I T"]:
    """Return the score of the best existing pair of embeddings of each image and text."""
    flat = (images.vectors.reshape(-1, images.vectors.shape[2]), texts.vectors.reshape(-1, texts.vectors.shape[2]))
    with np.errstate(invalid="ignore", over="ignore"):  # the ranking of the scores checks for NaN
        scores = -_violations(*flat) if kind == "order" else _product(*flat)
    if images.mask.shape[1] == texts.mask.shape[1] == 1:
        return scores
    exists = images.mask.reshape(-1, 1) & texts.mask.reshape(1, -1)
    best = np.where(exists, scores, -np.inf).reshape(*images.mask.shape, *texts.mask.shape).max(axis=(1, 3))
    return np.asarray(best)


def embeds_gaussians(model: object) -> bool:
    """Return whether the embeddings of a model, exported or not, are distributions."""
    similarity = getattr(model, "similarity", None)  # an exported model has a kind
    return getattr(model, "kind", None) == "csd" or (similarity is not None and similarity.reads_gaussians)


def turned(gaussians: ArraySet) -> ArraySet:
    """Return Gaussians of one side, images or texts, in the form of the other side.

    ``[m, u, 1]`` becomes ``[m, 1, u]``, so that inner products with Gaussians of their own side are scores, too.
    """
    order = [*range(gaussians.vectors.shape[2] - 2), -1, -2]
    return ArraySet(np.ascontiguousarray(gaussians.vectors[..., order]), gaussians.mask)


def uncertainties(vectors: Float[np.ndarray, "B D"], *, of_texts: bool) -> Float[np.ndarray, "B"]:
    """Return the sum of the variances of each Gaussian."""
    return np.asarray(-2 * vectors[:, -1 if of_texts else -2])


def directions(vectors: Any, *, are_gaussians: bool) -> Any:
    """Return the part of embeddings that has a direction: the means of Gaussians, and others whole."""
    return vectors[..., :-2] if are_gaussians else vectors


def loaded_torch() -> Any:
    """Return PyTorch if this process has loaded it, and otherwise None."""
    return sys.modules.get("torch")


def _product(images: Float[np.ndarray, "A D"], texts: Float[np.ndarray, "C D"]) -> Float[np.ndarray, "A C"]:
    """Return all inner products, by PyTorch if it is loaded, since threads of two libraries block each other.

    For one text, waking up threads takes longer than the products.
    """
    if len(texts) == 1:
        return np.asarray(np.einsum("nd,d->n", images, texts[0])[:, np.newaxis])
    if (torch := loaded_torch()) is None:
        return np.asarray(images @ texts.T)
    wanted, others = (torch.from_numpy(np.ascontiguousarray(each)) for each in (images, texts))
    return np.asarray(torch.mm(wanted, others.T).numpy())


def _violations(images: Float[np.ndarray, "A D"], texts: Float[np.ndarray, "C D"]) -> Float[np.ndarray, "A C"]:
    """Return ``|max(0, |t| - |i|)|^2`` of all pairs (Vendrov et al., 2016, eq. 2), some rows at a time."""
    specific, general = np.abs(images), np.abs(texts)
    made = np.empty((len(images), len(texts)), images.dtype)
    step = max(1, _DIFFERENCES // max(1, texts.size))
    for start in range(0, len(images), step):
        excess = np.maximum(general - specific[start : start + step, None], 0.0)
        made[start : start + step] = np.square(excess).sum(axis=2)
    return made
