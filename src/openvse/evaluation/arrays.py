"""Evaluation of two arrays of embeddings from any source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from openvse.errors import DataError
from openvse.evaluation.report import Report, evaluate_sets
from openvse.functional import require_one_space, unit_embeddings
from openvse.similarities import SetMax, Similarity
from openvse.types import EmbeddingSet, Relevance

Array: TypeAlias = np.ndarray | Tensor
GivenPairs: TypeAlias = Relevance | Array | Sequence[Any]
"""Which texts belong to which image, in one of the forms that ``evaluate`` accepts."""


def evaluate_arrays(
    images: Array | EmbeddingSet,
    texts: Array | EmbeddingSet,
    relevance: GivenPairs | None = None,
    *,
    similarity: Similarity | None = None,
    name: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    every: bool = False,
) -> Report:
    """Evaluate retrieval in both directions from embeddings of any source. See ``openvse.evaluate``.

    Raises:
        DataError: embeddings or relevance have a wrong shape or number, or are not finite.
    """
    score = SetMax() if similarity is None else similarity
    if not (score.reads_unit_vectors or score.reads_gaussians):
        raise DataError(
            f"{type(score).__name__} does not score embeddings of unit length, so arrays cannot be evaluated with it: "
            f"evaluate its model with openvse evaluate"
        )
    for given, side in ((images, "images"), (texts, "texts")):
        if isinstance(given, str | Path | nn.Module):
            raise DataError(f"{side} is {type(given).__name__}: give a model and data, or two arrays of embeddings")
    sides = _read(images, "images", score), _read(texts, "texts", score)
    mixed = len({each.vectors.dtype for each in sides}) > 1  # then both are in double precision
    one, other = (replace(each, vectors=each.vectors.double()) if mixed else each for each in sides)
    require_one_space(one, other)
    one, pairs, problems = _once(one, _relevance(relevance, len(one), len(other)))
    report = evaluate_sets(
        one, other, pairs, score, name=name, folds=folds, resamples=resamples, seed=seed, every=every
    )
    return replace(report, problems=problems)


_ROUNDING = 5e-3
_MANY = 0.1
"""The report warns if at least this share of the images have equal embeddings."""


def _once(images: EmbeddingSet, pairs: Relevance) -> tuple[EmbeddingSet, Relevance, tuple[str, ...]]:
    """Return each image once, and a line on equal images."""
    if (repeats := _repeats(images)) == 1:
        return images, pairs, _warnings(images)
    owners, texts = np.unique(np.stack([pairs.images // repeats, pairs.texts]), axis=1)
    once = Relevance(owners, texts, pairs.num_images // repeats, pairs.num_texts)
    line = f"each image is in {repeats} rows in sequence, and counts once: {once.num_images:,} images"
    return images[::repeats], once, (line,)


def _repeats(images: EmbeddingSet) -> int:
    """Return the number of consecutive rows of each image, or 1 if it is not the same number for all.

    Rows may differ by the rounding of half precision, since the batches of an encoder may round differently.
    """
    vectors = images.vectors.flatten(1)
    equal = (vectors[1:] - vectors[:-1]).norm(dim=1) <= _ROUNDING
    equal &= (images.mask[1:] == images.mask[:-1]).all(dim=1)
    starts = (~equal).nonzero().flatten() + 1
    size = math.gcd(len(images), *starts.tolist())
    return size if size < len(images) else 1  # all are equal: a model that has collapsed


def _warnings(images: EmbeddingSet) -> tuple[str, ...]:
    """Return a line on the images with equal embeddings, if there are many."""
    rows = images.vectors.flatten(1).cpu().float().numpy()
    equal = len(rows) - len(np.unique(np.ascontiguousarray(rows).view(f"V{rows[0].nbytes}")))
    if equal < _MANY * len(rows):
        return ()
    return (
        f"{equal:,} of {len(rows):,} images have the embedding of an earlier one, and ties count against the model: "
        f"if rows repeat an image, give it once, with relevance",
    )


def _units(given: Array | EmbeddingSet, side: str) -> EmbeddingSet:
    """Return embeddings of unit length without a gradient. Refuse NaN and infinity."""
    if isinstance(given, EmbeddingSet):
        return unit_embeddings(given.map(Tensor.detach), side)
    tensor = given.detach().to_dense() if isinstance(given, Tensor) else _tensor(given, side)
    units = unit_embeddings(_moderate(tensor), side)
    bad = (~tensor.isfinite()).flatten(1).any(dim=1).nonzero()
    if len(bad):
        raise DataError(f"row {int(bad[0])} of the {side} is NaN or infinite ({len(bad)} in all): check what made it")
    return units


def _tensor(given: np.ndarray, side: str) -> Tensor:
    """Return an array of numbers as a tensor, in the byte order of this machine."""
    try:
        array = np.ascontiguousarray(given)
    except ValueError as error:
        raise DataError(f"the rows of the {side} differ in width: give floats [items, width]") from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise DataError(f"the {side} are {array.dtype} {list(array.shape)}: give floats of at most 64 bits")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


_FAR = 1e15
"""The square of a number beyond this size, or below its inverse, does not fit single precision."""


def _moderate(vectors: Tensor) -> Tensor:
    """Return vectors whose length can be computed: very long and very short ones are scaled to a maximum of 1."""
    if not vectors.is_floating_point() or vectors.dim() < 2 or not vectors.numel():
        return vectors
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    extreme = (largest > _FAR) | ((largest < 1 / _FAR) & (largest > 0))
    return torch.where(extreme, vectors / largest, vectors) if extreme.any() else vectors


def _read(given: Array | EmbeddingSet, side: str, similarity: Similarity) -> EmbeddingSet:
    """Return embeddings at unit length. Distributions stay unchanged, because their length has a meaning."""
    units = _units(given, side)
    if not similarity.reads_gaussians:
        return units
    own = given.vectors.detach() if isinstance(given, EmbeddingSet) else torch.as_tensor(given).detach()
    return replace(units, vectors=own.to(units.vectors.dtype).view_as(units.vectors))


def _relevance(given: GivenPairs | None, num_images: int, num_texts: int) -> Relevance:
    if isinstance(given, Relevance):
        return given
    if given is None:
        if num_texts % num_images:
            raise DataError(
                f"{num_texts} texts are not a multiple of {num_images} images, so nobody can tell which belong "
                f"together: give relevance, the image of each text (int [{num_texts}]) or pairs (int [P, 2])"
            )
        owners = np.arange(num_texts) // (num_texts // num_images)
        return Relevance(owners, np.arange(num_texts), num_images, num_texts)
    array = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.dtype == bool and array.shape == (num_images, num_texts):
        rows, columns = np.nonzero(array)
    elif array.dtype.kind in "iu" and array.shape == (num_texts,):
        rows, columns = array, np.arange(num_texts)
    elif array.dtype.kind in "iu" and array.ndim == 2 and array.shape[1] == 2:
        if array.shape == (num_images, num_texts) and array.max(initial=0) <= 1:
            raise DataError(f"relevance is {array.dtype} {list(array.shape)}: give a bool matrix, or pairs as int [2]")
        rows, columns = array.T
    else:
        raise DataError(
            f"relevance is {array.dtype} {list(array.shape)}: give the image of each text (int [{num_texts}]), pairs "
            f"of image and text (int [P, 2]), or a matrix (bool [{num_images}, {num_texts}])"
        )
    return Relevance(rows.astype(np.int64), columns.astype(np.int64), num_images, num_texts)
