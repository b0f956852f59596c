"""The data types that the subpackages exchange. This module does not import any other module of openvse.

One legend for every shape in the package:

    I images or videos    T texts              B items of either kind
    Q questions           A answers to choose from   R relevant pairs over all processes
    N local features of an item (grid cells, regions, frames, tokens), padded to the longest of a batch
    L local width         K embeddings per item   D joint width    P positive pairs

Masks are bool and True marks a real element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload, runtime_checkable

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
_ALIGNED = 64  # bytes: a tensor begins at a multiple of this in a piece of memory


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a mask, numbers or ids to a device without waiting for it. ``on_cpu`` still knows their values.

    Numbers that decide shapes (lengths, places) can then be computed on the CPU, while the device still works.
    """
    return moved_together([tensor], device)[0]


def moved_together(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copy tensors as ``moved`` does, to a GPU in one piece: a small copy takes as long as its start.

    A large copy blocks unless it comes from pinned memory. PyTorch keeps that, and uses it again after the copy.
    """
    place = torch.device(device)
    if place.type == "cuda" and all(each.device.type == "cpu" and not each.requires_grad for each in tensors):
        sizes = [-(-each.nbytes // _ALIGNED) * _ALIGNED for each in tensors]
        piece = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=sum(sizes) > _STAGED)
        for part, each in zip(torch.split_with_sizes(piece, sizes), tensors, strict=True):
            _like(part, each).copy_(each)
        parts = torch.split_with_sizes(piece.to(place, non_blocking=True), sizes)
        copies = [_like(part, each) for part, each in zip(parts, tensors, strict=True)]
    else:
        copies = [each.to(place, non_blocking=place.type != "cpu") for each in tensors]
    for copy, origin in zip(copies, tensors, strict=True):
        if copy is not origin and origin.device.type == "cpu" and not origin.is_floating_point():
            _ORIGINS[copy] = origin
    return copies


def _like(piece: Tensor, tensor: Tensor) -> Tensor:
    """Return the beginning of a piece of bytes as a tensor like another one."""
    return piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _all_true(rows: int | torch.SymInt, columns: int | torch.SymInt, device: torch.device) -> Bool[Tensor, "B K"]:
    return moved(torch.ones(rows, columns, dtype=torch.bool), device)


def knows(tensor: Tensor) -> bool:
    """Return whether ``on_cpu`` knows the values of a tensor without waiting for its device."""
    return tensor.device.type == "cpu" or tensor in _ORIGINS


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor's values on the CPU. Wait for its device only if ``moved`` has not copied it."""
    if tensor.device.type == "cpu":
        return tensor
    if tensor not in _ORIGINS:
        _ORIGINS[tensor] = tensor.detach().cpu()
    return cast(Tensor, _ORIGINS[tensor])


def changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the result of a change of a tensor, with the change also applied to its copy for ``on_cpu``."""
    made = change(tensor)
    if tensor in _ORIGINS:
        _ORIGINS[made] = change(_ORIGINS[tensor])
    return made


MovableT = TypeVar("MovableT", bound="Movable")


class Movable:
    """A dataclass of tensors, and of parts that are such dataclasses."""

    def map(self: MovableT, change: Callable[[Tensor], Tensor]) -> MovableT:
        """Return the same with each of its tensors changed."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        changes: dict[str, Any] = {name: part.map(change) for name, part in parts.items() if isinstance(part, Movable)}
        changes |= {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changes)  # type: ignore[type-var]

    def to(self: MovableT, device: torch.device | str) -> MovableT:
        """Return the same on ``device``, copied together. ``on_cpu`` knows what is no float."""
        tensors: list[Tensor] = []
        self.map(lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
        copies = iter(moved_together(tensors, device))
        return self.map(lambda _: next(copies))


@dataclass(frozen=True)
class Inputs(Movable):
    """A collated batch of one modality, ready for an encoder.

    Attributes:
        values: token ids ``int64 [B, N]``, stored local features ``float [B, N, L]`` (an encoder also takes float16),
            or pixels ``float [B, 3, H, W]`` (``float [B, N, 3, H, W]`` if an item consists of several images), which
            for a GPU are levels ``uint8`` (``LevelBackbone``).
        mask: ``bool [B, N]``, or None for pixels, for which the encoder determines N.
        boxes: the boxes of stored local features, as in ``Features``, if the store has them.
    """

    values: Tensor
    mask: Bool[Tensor, "B N"] | None
    boxes: Float[Tensor, "B N 4"] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> Inputs:
        """Return some of the items, as a view."""
        return self.map(lambda tensor: changed(tensor, lambda each: each[rows]))


@dataclass(frozen=True)
class Graph(Movable):
    """The role graphs of texts, in slots: first the event, then alternately an action and an entity (HGR).

    Attributes:
        members: which local features belong to the node of a slot. A slot without any does not exist.
        roles: the semantic role of each node.
        edges: if ``edges[b, i, j]`` is True, node i reads node j.
    """

    members: Bool[Tensor, "B S N"]
    roles: Int[Tensor, "B S"]
    edges: Bool[Tensor, "B S S"]


@dataclass(frozen=True)
class Features:
    """The output of an encoder: local features, and one global vector if the aggregator needs it (PIE-Net).

    Attributes:
        mask: which local features are real.
        pooled: the global vector.
        boxes: the box of each local feature (left, top, right, bottom) as fractions of the image's width and height,
            if the encoder knows it.
        graph: the role graph of each text, if the encoder knows it.
        middle: for each local feature, the means of channels in the middle of the network and of their squares.
    """

    local: Float[Tensor, "B N L"]
    mask: Bool[Tensor, "B N"]
    pooled: Float[Tensor, "B D"] | None = None
    boxes: Float[Tensor, "B N 4"] | None = None
    graph: Graph | None = None
    middle: Float[Tensor, "B N M"] | None = None


@dataclass(frozen=True, repr=False)
class EmbeddingSet(Movable):
    """K embeddings per item in the joint space. K = 1 is the usual case, and K = N keeps all tokens.

    ``numpy.asarray`` makes an array of one: ``[B, D]`` if K = 1, and otherwise ``[B, K, D]``, with 0 for missing ones.

    Attributes:
        vectors: ``[B, K, D]``. A Tower returns them at unit length.
        mask: ``[B, K]``, True where the embedding exists.
        residual: ``[B, K, R]``, the part that PVSE's diversity term acts on, or the code of an autoencoder.
        source: ``[B, S]``, the vector from which an autoencoder made the code.
        unscaled: ``vectors`` before a Tower scaled them. Only in training, if a term needs them.
        local: the local features, as a set of their own. Only in training, if a term needs them.
    """

    vectors: Float[Tensor, "B K D"]
    mask: Bool[Tensor, "B K"]
    residual: Float[Tensor, "B K R"] | None = None
    source: Float[Tensor, "B S"] | None = None
    unscaled: Float[Tensor, "B K D"] | None = None
    local: EmbeddingSet | None = None

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

    @staticmethod
    def full(
        vectors: Float[Tensor, "B K D"],
        residual: Float[Tensor, "B K R"] | None = None,
        source: Float[Tensor, "B S"] | None = None,
    ) -> EmbeddingSet:
        """Return a set of which every embedding exists."""
        make = _all_true if vectors.is_cuda else _all_true.__wrapped__  # on a GPU a mask is made once
        return EmbeddingSet(vectors, make(*vectors.shape[:2], vectors.device), residual, source)

    @staticmethod
    def concatenate(parts: Sequence[EmbeddingSet]) -> EmbeddingSet:
        """Join sets with the same D. Smaller K are padded. What may be None is kept if every part has it."""
        most = max(part.mask.shape[1] for part in parts)
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(EmbeddingSet)):
            each = [value for part in parts if (value := getattr(part, name)) is not None]
            if len(each) < len(parts):
                joined[name] = None
            elif name == "local":
                joined[name] = EmbeddingSet.concatenate(each)
            else:
                joined[name] = torch.cat(each if name == "source" else [with_places(tensor, most) for tensor in each])
        return EmbeddingSet(**joined)


def with_places(tensor: Shaped[Tensor, "B K *_"], most: int) -> Shaped[Tensor, "B M *_"]:
    """Pad the second axis of a tensor with zeros."""
    return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, most - tensor.shape[1]))


@dataclass(frozen=True)
class Batch(Movable):
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

        def repeated(tensor: Tensor) -> Tensor:
            return changed(tensor, lambda each: each.repeat_interleave(times, 0))

        keys, rows = self.partners.unbind(dim=1)
        rows = (rows.unsqueeze(1) * times + torch.arange(times, device=rows.device)).flatten()
        return replace(
            self,
            images=self.images.map(repeated),
            texts=self.texts.map(repeated),
            positives=changed(repeated(self.positives), lambda each: each.repeat_interleave(times, 1)),
            image_keys=repeated(self.image_keys),
            partners=torch.stack((repeated(keys), rows), dim=1),
        )


@dataclass(frozen=True)
class QuestionBatch(Movable):
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


PairWeights: TypeAlias = tuple[Float[Tensor, "P k N"], Float[Tensor, "P k M"]]
"""The weight of each embedding of the image, and of the text, in the k vectors of P pairs."""


@dataclass(frozen=True)
class ScoredBatch:
    """The input of an objective: the score matrix, which pairs are positive, and the embeddings behind the scores.

    Attributes:
        attended: ``Similarity.attended`` of these embeddings, for the rows and the columns of some pairs.
    """

    scores: Float[Tensor, "I T"]
    positives: Bool[Tensor, "I T"]
    images: EmbeddingSet
    texts: EmbeddingSet
    attended: Callable[[Int[Tensor, "P"], Int[Tensor, "P"]], PairWeights | None] = lambda rows, columns: None


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

    def __contains__(self, item: object) -> bool:
        """Return whether an item is stored."""

    def positions(self, ids: Sequence[str]) -> Int[np.ndarray, "B"]:
        """Return the positions of the items. Raise StoreError, which names them, if some are missing."""

    def gather(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read items as ``float32 [B, N, L]`` values with their mask, without loading anything else."""


OnProgress: TypeAlias = Callable[[str, int, int], None]
"""A function called with the name of the work, how much of it is done, and the total."""
