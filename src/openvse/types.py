"""The data types that the subpackages exchange. This module does not import any other module of openvse.

One legend for every shape in the package:

    I images or videos    T texts              B items of either kind
    Q questions           A answers to choose from   R relevant pairs over all processes
    N local features of an item (grid cells, regions, frames, tokens), padded to the longest of a batch
    L local width         K embeddings per item   D joint width    P positive pairs

Masks are bool and True marks a real element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Protocol, TypeAlias, overload, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import DTypeLike
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["EmbeddingSet", "Features", "Inputs", "Relevance", "ScoredBatch"]

_ORIGINS = WeakTensorKeyDictionary()
_STAGED = 1 << 16  # bytes that CUDA copies from anywhere without blocking


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a mask, numbers or ids to a device without waiting for it. ``on_cpu`` still knows their values.

    Numbers that decide shapes (lengths, places) can then be computed on the CPU, while the device still works.
    """
    if tensor.device.type == torch.device(device).type == "cpu":
        return tensor
    copied = _sent(tensor, device)
    if tensor.device.type == "cpu":
        _ORIGINS[copied] = tensor
    return copied


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor's values on the CPU. Wait for its device only if ``moved`` has not copied it."""
    if tensor.device.type == "cpu":
        return tensor
    if tensor not in _ORIGINS:
        _ORIGINS[tensor] = tensor.detach().cpu()
    origin: Tensor = _ORIGINS[tensor]
    return origin


def _changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the result of a change of a tensor, with the change also applied to its copy for ``on_cpu``."""
    changed = change(tensor)
    if tensor in _ORIGINS:
        _ORIGINS[changed] = change(_ORIGINS[tensor])
    return changed


def _sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy to a device. A large copy blocks unless it comes from pinned memory."""
    place = torch.device(device)
    if place.type == "cuda" and tensor.device.type == "cpu" and tensor.nbytes > _STAGED:
        tensor = tensor.pin_memory()
    return tensor.to(place, non_blocking=place.type != "cpu")


@dataclass(frozen=True)
class Inputs:
    """A collated batch of one modality, ready for an encoder.

    Attributes:
        values: token ids ``int64 [B, N]``, stored local features ``float [B, N, L]``, or pixels ``float [B, 3, H, W]``
            (``float [B, N, 3, H, W]`` if an item consists of several images).
        mask: ``bool [B, N]``, or None for pixels, for which the encoder determines N.
    """

    values: Tensor
    mask: Bool[Tensor, "B N"] | None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> Inputs:
        """Return some of the items, as a view."""
        return self._changed(lambda tensor: tensor[rows])

    def copied(self, times: int) -> Inputs:
        """Return a batch with each item several times in a row."""
        return self._changed(lambda tensor: tensor.repeat_interleave(times, 0))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        mask = None if self.mask is None else _changed(self.mask, change)
        return Inputs(_changed(self.values, change), mask)

    def to(self, device: torch.device | str) -> Inputs:
        """Return the same batch on ``device``, of which ``on_cpu`` knows the mask and the token ids."""
        send = _sent if self.values.is_floating_point() else moved
        return Inputs(send(self.values, device), None if self.mask is None else moved(self.mask, device))

    def pinned(self) -> Inputs:
        """Return the same batch in memory that a GPU can copy while it computes."""
        return Inputs(self.values.pin_memory(), None if self.mask is None else self.mask.pin_memory())


@dataclass(frozen=True)
class Graph:
    """The role graphs of texts, in slots: first the event, then alternately an action and an entity (HGR).

    Attributes:
        members: which local features belong to the node of a slot. A slot without any does not exist.
        roles: the semantic role of each node.
        edges: if ``edges[b, i, j]`` is True, node i reads node j.
    """

    members: Bool[Tensor, "B S N"]
    roles: Int[Tensor, "B S"]
    edges: Bool[Tensor, "B S S"]

    def to(self, device: torch.device | str) -> Graph:
        """Return the same graphs on ``device``."""
        return Graph(moved(self.members, device), moved(self.roles, device), moved(self.edges, device))


@dataclass(frozen=True)
class Features:
    """The output of an encoder: local features, and one global vector if the aggregator needs it (PIE-Net).

    Attributes:
        mask: which local features are real.
        pooled: the global vector.
        boxes: the box of each local feature (left, top, right, bottom) as fractions of the image's width and height,
            if the encoder knows it.
        ranked: the local features sorted in each dimension, if several aggregators share one sort.
        graph: the role graph of each text, if the encoder knows it.
        middle: for each local feature, the means of channels in the middle of the network and of their squares.
    """

    local: Float[Tensor, "B N L"]
    mask: Bool[Tensor, "B N"]
    pooled: Float[Tensor, "B D"] | None = None
    boxes: Float[Tensor, "B N 4"] | None = None
    ranked: Float[Tensor, "B L N"] | None = None
    graph: Graph | None = None
    middle: Float[Tensor, "B N M"] | None = None


@dataclass(frozen=True, repr=False)
class EmbeddingSet:
    """K embeddings per item in the joint space. K = 1 is the usual case, and K = N keeps all tokens.

    ``numpy.asarray`` makes an array of one: ``[B, D]`` if K = 1, and otherwise ``[B, K, D]``, with 0 for missing ones.

    Attributes:
        vectors: ``[B, K, D]``. A Tower returns them at unit length.
        mask: ``[B, K]``, True where the embedding exists.
        residual: ``[B, K, R]``, the part that PVSE's diversity term acts on, or the code of an autoencoder.
        source: ``[B, S]``, the vector from which an autoencoder made the code.
    """

    vectors: Float[Tensor, "B K D"]
    mask: Bool[Tensor, "B K"]
    residual: Float[Tensor, "B K R"] | None = None
    source: Float[Tensor, "B S"] | None = None

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
        return f"EmbeddingSet(shape={self.shape}, {str(self.vectors.dtype).removeprefix('torch.')})"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Shaped[np.ndarray, "B *K D"]:
        vectors = self.vectors.detach().cpu()
        vectors = vectors.float() if vectors.dtype == torch.bfloat16 else vectors  # NumPy has no bfloat16
        one = vectors.shape[1] == 1
        vectors = vectors[:, 0] if one else vectors.masked_fill(~self.mask.cpu().unsqueeze(2), 0.0)
        return np.array(vectors.numpy(), dtype=dtype, copy=copy)

    @overload
    def __getitem__(self, rows: int) -> Float[Tensor, "*K D"]: ...
    @overload
    def __getitem__(self, rows: slice | Int[Tensor, "b"]) -> EmbeddingSet: ...
    def __getitem__(self, rows: int | slice | Int[Tensor, "b"]) -> EmbeddingSet | Float[Tensor, "*K D"]:
        """Return one item as ``numpy()`` has it, or a set of some: a view for a slice, a copy for positions."""
        if isinstance(rows, Integral):
            vectors, mask = self.vectors[rows], self.mask[rows]
            return vectors[0] if len(vectors) == 1 else vectors.masked_fill(~mask.unsqueeze(1), 0.0)
        return self.map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> EmbeddingSet:
        """Return the same embeddings on ``device``."""
        return self.map(lambda tensor: tensor.to(device))

    def detach(self) -> EmbeddingSet:
        """Return the embeddings detached from the autograd graph."""
        return self.map(Tensor.detach)

    def map(self, change: Callable[[Tensor], Tensor]) -> EmbeddingSet:
        """Return the embeddings with each of their tensors changed."""
        residual = None if self.residual is None else change(self.residual)
        source = None if self.source is None else change(self.source)
        return EmbeddingSet(change(self.vectors), change(self.mask), residual, source)

    @staticmethod
    def full(
        vectors: Float[Tensor, "B K D"],
        residual: Float[Tensor, "B K R"] | None = None,
        source: Float[Tensor, "B S"] | None = None,
    ) -> EmbeddingSet:
        """Return a set of which every embedding exists."""
        mask = moved(torch.ones(vectors.shape[:2], dtype=torch.bool), vectors.device)
        return EmbeddingSet(vectors, mask, residual, source)

    @staticmethod
    def concatenate(parts: Sequence[EmbeddingSet]) -> EmbeddingSet:
        """Join sets with the same D. Smaller K are padded. Residual and source are kept if every part has them."""
        most = max(part.mask.shape[1] for part in parts)

        def widen(tensors: list[Tensor]) -> Tensor:
            return torch.cat([F.pad(t, (0, 0) * (t.dim() - 2) + (0, most - t.shape[1])) for t in tensors])

        residuals = [part.residual for part in parts if part.residual is not None]
        sources = [part.source for part in parts if part.source is not None]
        return EmbeddingSet(
            widen([part.vectors for part in parts]),
            widen([part.mask for part in parts]),
            widen(residuals) if len(residuals) == len(parts) else None,
            torch.cat(sources) if len(sources) == len(parts) else None,
        )


@dataclass(frozen=True)
class Batch:
    """A training batch: I images, T texts, and which of them belong together. No image occurs twice, except for copies.

    Attributes:
        images: the I images.
        texts: the T texts.
        positives: the pairs that belong together.
        image_keys: a number for each image, the same in every batch and process.
        partners: (image key, row of the text) for every relevant pair of a text here and an image of any process.
        description: the names of the pairs, for messages.
    """

    images: Inputs
    texts: Inputs
    positives: Bool[Tensor, "I T"]
    image_keys: Int[Tensor, "I"]
    partners: Int[Tensor, "R 2"]
    description: str = ""

    def copied(self, times: int) -> Batch:
        """Return the batch with each image and text several times in a row. All copies of a pair belong together."""
        if times == 1:
            return self
        keys, rows = self.partners.unbind(dim=1)
        rows = (rows.unsqueeze(1) * times + torch.arange(times, device=rows.device)).flatten()
        return replace(
            self,
            images=self.images.copied(times),
            texts=self.texts.copied(times),
            positives=_changed(
                self.positives, lambda tensor: tensor.repeat_interleave(times, 0).repeat_interleave(times, 1)
            ),
            image_keys=self.image_keys.repeat_interleave(times),
            partners=torch.stack((keys.repeat_interleave(times), rows), dim=1),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on ``device``."""
        return replace(
            self,
            images=self.images.to(device),
            texts=self.texts.to(device),
            positives=moved(self.positives, device),
            image_keys=moved(self.image_keys, device),
            partners=moved(self.partners, device),
        )

    def pinned(self) -> Batch:
        """Return the same batch with its images and texts in memory that a GPU can copy while it computes."""
        return replace(self, images=self.images.pinned(), texts=self.texts.pinned())


@dataclass(frozen=True)
class QuestionBatch:
    """A batch of Q questions about I images. No image occurs twice, however many questions are about it.

    Attributes:
        images: the I images. None for a model that reads only questions.
        image_of: the row of each question's image. Zeros where there are no images.
        questions: the Q questions.
        targets: the score of each answer, from 0 to 1.
        divisor: Q, or its mean over the processes that share the batch: a sum over questions divided by it is a mean.
        description: the names of the questions, for messages.
    """

    images: Inputs | None
    image_of: Int[Tensor, "Q"]
    questions: Inputs
    targets: Float[Tensor, "Q A"]
    divisor: float
    description: str = ""

    def to(self, device: torch.device | str) -> QuestionBatch:
        """Return the same batch on ``device``."""
        return replace(
            self,
            images=None if self.images is None else self.images.to(device),
            image_of=moved(self.image_of, device),
            questions=self.questions.to(device),
            targets=moved(self.targets, device),
        )

    def pinned(self) -> QuestionBatch:
        """Return the same batch with its images and questions in memory that a GPU can copy while it computes."""
        images = None if self.images is None else self.images.pinned()
        return replace(self, images=images, questions=self.questions.pinned())


@dataclass(frozen=True)
class ScoredBatch:
    """The input of an objective: the score matrix, which pairs are positive, and the embeddings behind the scores."""

    scores: Float[Tensor, "I T"]
    positives: Bool[Tensor, "I T"]
    images: EmbeddingSet
    texts: EmbeddingSet


@dataclass(frozen=True)
class Relevance:
    """Which image is relevant to which text: P explicit pairs, never a rule such as ``index // 5``.

    Attributes:
        images: ``int64 [P]``, the image of each pair.
        texts: ``int64 [P]``, the text of each pair.
        num_images: I.
        num_texts: T.
    """

    images: Int[np.ndarray, "P"]
    texts: Int[np.ndarray, "P"]
    num_images: int
    num_texts: int

    @property
    def shape(self) -> tuple[int, int]:
        """I and T, the shape of a matrix of scores."""
        return self.num_images, self.num_texts


@runtime_checkable
class FeatureSource(Protocol):
    """Stored local features of images, by identifier (a feature store, or arrays in memory in tests)."""

    @property
    def dim(self) -> int:
        """L, the width of a local feature."""
        ...

    def __contains__(self, item: object) -> bool:
        """Return whether an item is stored."""
        ...

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of the items. Raise StoreError, which names them, if some are missing."""
        ...

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items as ``float32 [B, N, L]`` values with their mask, without loading anything else."""
        ...


OnProgress: TypeAlias = Callable[[str, int, int], None]
"""A function called with the name of the work, how much of it is done, and the total."""
