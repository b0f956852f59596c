"""Items that are nearly the same, such as several takes of a scene, by the cosine of their embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from openvse.runtime.arrays import directions

SAME = 0.98
"""The lowest cosine of two near duplicates. With several embeddings, the two most similar count."""

_ROUNDING = 1e-6


def unit_vectors(vectors: Float[np.ndarray, "n K D"], *, are_gaussians: bool) -> Float[np.ndarray, "n K d"]:
    """Return the directions of embeddings, with unit length."""
    some: Any = directions(vectors.astype(np.float32), are_gaussians=are_gaussians)
    return np.asarray(some / np.maximum(np.linalg.norm(some, axis=-1, keepdims=True), 1e-12))


def are_same(
    some: Float[np.ndarray, "n K d"], others: Float[np.ndarray, "m K d"], least: float = SAME
) -> Bool[np.ndarray, "n m"]:
    """Return which unit vectors of two sets are nearly the same."""
    width = some.shape[-1]
    products = some.reshape(-1, width) @ others.reshape(-1, width).T
    shape = len(some), some.shape[1], len(others), others.shape[1]
    near: np.ndarray = products.reshape(shape).max(axis=(1, 3)) >= least - _ROUNDING
    return near


def first_of_scenes(vectors: Float[np.ndarray, "n K d"], most: int) -> Int[np.ndarray, "_"]:
    """Return the places of the first ``most`` items that are not nearly the same as one of these before them.

    So no chain joins items that do not resemble each other, and more items change nothing for the earlier ones.
    """
    firsts, heads = list[int](), np.empty_like(vectors[:most])
    for place, one in enumerate(vectors):
        if not are_same(one[None], heads[: len(firsts)]).any():
            heads[len(firsts)] = one
            firsts.append(place)
            if len(firsts) == most:
                break
    return np.array(firsts, np.int64)
