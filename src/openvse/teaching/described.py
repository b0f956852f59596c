"""What the linear map of a model reads of each image of an index, kept beside it, so that a new map costs one product.

``teaching/described-<fingerprint>/`` in the folder of the index is a feature store with one row for each image. The id
of a row is the time, the size and the name of the file, so the row of a changed file is not found. They also tell which
image to caption next: the one whose caption is expected to tell most about all images of the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from PIL.Image import Image
from torch import Tensor

from openvse.aggregators.composed import PooledLinear
from openvse.backbones import Backbone
from openvse.features.extract import extract_features
from openvse.features.store import FEATURES, FeatureStore
from openvse.media.listing import list_media, rules_of
from openvse.media.videos import ClipSource
from openvse.model.two_tower import TwoTower
from openvse.pipeline import WorkProgress, tell_skipped
from openvse.retrieval.closed_form import described_by
from openvse.runtime.arrays import ArraySet
from openvse.types import Features, Inputs

RIDGE = 1.0
"""The variance of a caption beside what its image tells, in units of the images' mean squared length."""

_SEEN = 4096  # images from which the main directions are computed


def main_directions(described: Shaped[np.ndarray, "n L"], width: int = 64) -> Float[np.ndarray, "n d"]:
    """Return descriptions of images by their main directions, centred, with a mean squared length of 1.

    The directions are those of some images spread over all. The rows are read block by block.
    """
    seen = np.unique(np.linspace(0, len(described) - 1, _SEEN).astype(np.int64))
    some = described[seen].astype(np.float64)
    mean = some.mean(0)
    _, basis = np.linalg.eigh((some - mean).T @ (some - mean))
    basis = basis[:, ::-1][:, :width]
    images = np.empty((len(described), basis.shape[1]), np.float32)
    for start in range(0, len(images), _BLOCK):
        images[start : start + _BLOCK] = (described[start : start + _BLOCK] - mean) @ basis
    return images / np.float32(np.sqrt((images[seen] ** 2).sum(1).mean()) or 1.0)


def next_images(
    images: Float[np.ndarray, "n d"],
    captioned: Int[np.ndarray, "m"],
    count: int = 10,
    weights: Float[np.ndarray, "n"] | None = None,
) -> list[int]:
    """Return the positions of the images to caption next, in their order.

    A caption is a linear function of its image, and noise: so each captioned image makes the captions of images like it
    more certain. The next image is the one whose caption, whatever it says, makes the captions of all images most
    certain in sum. It is typical of many, far from what is captioned, and no copy of another.

    In formulas (Yu, Bi and Tresp, ICML 2006): ``P = (I + X^T X / r)^-1`` of the captioned images X is how uncertain the
    function is, ``A = sum_j w_j z_j z_j^T`` of all images, and the next image has the largest
    ``z^T P A P z / (r + z^T P z)``. A step is two products of a matrix and a vector.

    Args:
        images: descriptions of all images (``main_directions``).
        captioned: the positions of the images with captions.
        count: how many images to return, if so many are without captions.
        weights: w, how much each image counts. Default: all the same.
    """
    weights = np.ones(len(images), np.float32) if weights is None else weights
    some = images[captioned].astype(np.float64)
    spread = np.linalg.inv(np.eye(images.shape[1]) + some.T @ some / RIDGE)
    whole = (images * weights[:, np.newaxis]).T @ images / weights.sum()
    unsure, gains = (
        np.einsum("nd,nd->n", images @ each.astype(np.float32), images) for each in (spread, spread @ whole @ spread)
    )
    left = np.ones(len(images), bool)
    left[captioned] = False
    chosen: list[int] = []
    for _ in range(min(count, int(left.sum()))):
        place = int(np.argmax(np.where(left, gains / (RIDGE + unsure), -np.inf)))
        chosen.append(place)
        left[place] = False
        towards, total = spread @ images[place], RIDGE + float(unsure[place])
        shared, told = images @ towards.astype(np.float32), images @ (spread @ whole @ towards).astype(np.float32)
        gains += shared**2 * np.float32(towards @ whole @ towards / total**2) - 2 / total * shared * told
        unsure -= shared**2 / total
        spread -= np.outer(towards, towards) / total
    return chosen


FOLDER = "teaching"
"""The folder in the folder of an index that teaching writes."""

_BLOCK = 4096


def can_learn(model: TwoTower) -> bool:
    """Return whether both sides of a model end in linear maps alone, which a closed form solves anew."""
    sides = model.image.aggregator, model.text.aggregator
    return all(isinstance(each, PooledLinear) and not each.residual for each in sides) and model.reads_images


class Describer(Backbone):
    """The images of a model up to its linear map, as a backbone with one feature for each image."""

    def __init__(self, model: TwoTower) -> None:
        tower, linear = described_by(model).image, model.image.aggregator
        assert isinstance(linear, PooledLinear), "only such a model learns"
        digest = hashlib.sha256(f"{model.spec.image} {tower.encoder.fingerprint}".encode())
        for weight in () if linear.classifier is None else linear.classifier.parameters():
            digest.update(weight.detach().cpu().numpy().tobytes())
        super().__init__(
            tower, feature_dim=linear.linear.in_features, fingerprint=f"described-{digest.hexdigest()[:16]}"
        )

    @property
    def _inner(self) -> Backbone:
        backbone: Backbone = self.net.encoder.backbone  # type: ignore[union-attr, assignment]
        return backbone

    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        return self._inner.preprocess(image)

    def read(
        self, source: ClipSource, generator: Any = None, *, to_store: bool = False, exact: bool = False
    ) -> Shaped[Tensor, "... 3 H W"]:
        """Decode an image as an index does."""
        return self._inner.read(source, exact=False)

    def collate(self, items: Sequence[Shaped[Tensor, "... 3 H W"]]) -> Inputs:
        return self._inner.collate(items)

    def see(self, inputs: Inputs) -> Features:
        vectors = self.net(inputs).vectors
        return Features(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))


def map_of(tower: Any) -> tuple[Float[np.ndarray, "L D"], Float[np.ndarray, "D"]]:
    """Return the weight and the bias of the linear map of one side of a model."""
    linear = tower.aggregator.linear
    return linear.weight.detach().numpy().T, linear.bias.detach().numpy()


def name_of(path: Path, modified_ns: int, size: int) -> str:
    """Return the id of the row of a file."""
    return f"{modified_ns}-{size}-{path.name}".replace("\n", " ")


class Described:
    """The descriptions of the images of an index. As ``StoredImages`` they replace the images when it is made.

    Args:
        model: the model of the index.
        index: the folder of the index.
    """

    def __init__(self, model: TwoTower, index: Path) -> None:
        self._model, self._describer = model, Describer(model)
        self._place = index / FOLDER / str(self._describer.fingerprint)
        self._read()

    def _read(self) -> None:
        is_there = (self._place / "store.json").is_file()
        store = FeatureStore(self._place, self._describer.fingerprint) if is_there else None
        self._positions = {} if store is None else {name: place for place, name in enumerate(store.ids)}
        self._rows: Float[np.ndarray, "n L"] = (
            np.load(self._place / FEATURES, mmap_mode="r")
            if self._positions
            else np.empty((0, self._describer.feature_dim), np.float16)
        )

    def add(self, images: Iterable[tuple[str, Path]], progress: Callable[[WorkProgress], None] | None = None) -> None:
        """Describe those images that are not described yet, by their ids. Unreadable ones are left out."""
        if missing := {name: path for name, path in images if name not in self._positions}:
            report = extract_features(self._describer, [*missing.items()], self._place, progress=progress)
            tell_skipped(report.failed)
            self._read()
            vars(self).pop("directions", None)

    def positions(self, names: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return the rows of images by their ids, -1 for one without."""
        return np.array([self._positions.get(name, -1) for name in names], np.int64)

    def rows(self, positions: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n L"]:
        """Return descriptions in double precision."""
        rows: Float[np.ndarray, "n L"] = self._rows[positions].astype(np.float64)
        return rows

    def mapped(
        self, positions: Int[np.ndarray, "n"], weight: Float[np.ndarray, "L D"], bias: Float[np.ndarray, "D"]
    ) -> Float[np.ndarray, "n D"]:
        """Return the embeddings by a linear map, of length 1, and 0 for an image without a description."""
        weight, bias = weight.astype(np.float32), bias.astype(np.float32)
        vectors = np.zeros((len(positions), len(bias)), np.float32)
        for start in range(0, len(positions), _BLOCK):
            here = positions[start : start + _BLOCK]
            there = np.flatnonzero(here >= 0)
            some = self._rows[here[there]].astype(np.float32) @ weight + bias
            vectors[start + there] = some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-12)
        return vectors

    @cached_property
    def directions(self) -> Float[np.ndarray, "n d"]:
        """The main directions of all rows, from which the next image to teach is chosen."""
        return main_directions(self._rows)

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the row of an image, or None if it has none, or has changed since."""
        return self._positions.get(name_of(path, modified_ns, size))

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> ArraySet:
        """Embed the images of some rows by the model."""
        return ArraySet.full(self.mapped(np.asarray(positions), *map_of(self._model.image))[:, np.newaxis])


def describe_folder(
    model: Any, folder: Path, index: Path, progress: Callable[[WorkProgress], None] | None
) -> Described | None:
    """Return the descriptions of the images of a folder that is about to be indexed, or None if they are of no use."""
    if not isinstance(model, TwoTower) or not can_learn(model):
        return None
    described, files = Described(model, index), []
    for path in list_media(folder, ignored=rules_of(folder)).paths:
        status = path.stat()
        files.append((name_of(path, status.st_mtime_ns, status.st_size), path))
    described.add(files, progress)
    return described
