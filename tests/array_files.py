"""Writes the precomputed layout: arrays, captions a line, identifiers a line, and a mapping to file names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def write_split(
    folder: Path,
    name: str,
    features: np.ndarray,
    captions: Sequence[Sequence[str]],
    *,
    repeats: int = 1,
    ids: Sequence[str] = (),
) -> None:
    """Write one split: features ``[n, N, C]`` of n images, and the captions of each."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}_ims.npy", np.repeat(features, repeats, axis=0))
    lines = [caption for texts in captions for caption in texts]
    (folder / f"{name}_caps.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if ids:
        (folder / f"{name}_ids.txt").write_text("".join(f"{item}\n" for item in ids))


def write_mapping(path: Path, names: Mapping[str, str]) -> None:
    """Write ``id_mapping.json``."""
    path.write_text(json.dumps(dict(names)))


def random_features(num_images: int, seed: int = 0, *, num_local: int = 3, dim: int = 4) -> np.ndarray:
    """Return ``[n, N, C]``, no two images alike."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_images, num_local, dim)).astype(np.float32)


def five(word: str, num_images: int) -> list[list[str]]:
    """Return five captions for each image."""
    return [[f"{word} {image} caption {number}" for number in range(5)] for image in range(num_images)]
