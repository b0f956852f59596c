"""Stored features, which replace images that have not changed since the extraction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from openvse.errors import RecipeError, StoreError
from openvse.features.store import MANIFEST, FeatureStore, SourceFile, open_store, read_sources
from openvse.files import read_text
from openvse.media.packed import ImageFile
from openvse.model.two_tower import TwoTower, embed
from openvse.pipeline import in_batches
from openvse.specs.load import parse_yaml
from openvse.types import EmbeddingSet


class StoredFeatures:
    """Embeds images from the features in a store, for ``build_index``.

    Args:
        model: the model whose encoder made the features.
        store: a store that ``extract_features`` made, which notes the file of each item.
    """

    def __init__(self, model: TwoTower, store: FeatureStore) -> None:
        self._model, self.store, self._sources = model, store, read_sources(store.path)
        self._reads_images = model.image.encoder.backbone.reads_images
        self._moved: dict[tuple[str, int, int], SourceFile | None] = {}
        for path, source in ({} if self._reads_images else self._sources).items():
            key = path.name, source.modified_ns, source.size
            self._moved[key] = None if key in self._moved else source

    def find(self, path: Path, modified_ns: int, size: int) -> int | None:
        """Return the position of an image in the store, or None if it is missing there or has changed since.

        A model that cannot read images recognises a moved image by its name, time and size.
        """
        source = self._sources.get(Path(os.path.realpath(path)), self._moved.get((path.name, modified_ns, size)))
        if source is None or (source.modified_ns, source.size) != (modified_ns, size):
            return None
        return int(self.store.positions([source.id])[0]) if source.id in self.store else None

    def holds(self, ids: Sequence[str], files: Sequence[ImageFile]) -> bool:
        """Return whether the store has all of some images under these identifiers, and their files have not changed.

        For a model that cannot read images, the state of the files does not matter.
        """
        if not self._reads_images:
            return all(item in self.store for item in ids)
        return all(isinstance(file, Path) and self._has(item, file) for item, file in zip(ids, files, strict=True))

    def _has(self, item: str, file: Path) -> bool:
        source = self._sources.get(Path(os.path.realpath(file)))
        try:
            status = file.stat()
        except OSError:
            return False
        return source == SourceFile(item, status.st_mtime_ns, status.st_size) and item in self.store

    def embed(self, positions: Int[np.ndarray, "B"], batch_size: int) -> EmbeddingSet:
        """Embed the images at these positions of the store, in the order given."""
        numbers = map(np.array, in_batches(range(len(positions)), batch_size))
        batches = ((some, self.store.gather(positions[some])) for some in numbers)
        return embed(self._model.image, batches, self._model.device)


def find_stored_features(model: TwoTower, folder: str | Path, features: Path | None = None) -> StoredFeatures | None:
    """Return the stored features that can replace images when a model indexes them.

    Args:
        folder: where the model was loaded from. The store of a run is next to its ``best/``, or its recipe names it.
        features: the folder of a store. None looks for the store of the model's run.

    Returns:
        The stored features, or None if no store is named and the run has none that the model's encoder made.

    Raises:
        StoreError: the named store is missing, damaged, or made by another encoder.
    """
    if features is not None:
        store = open_store(features, model.image.encoder)
        return None if store is None else StoredFeatures(model, store)
    for place in _of_run(Path(folder).resolve().parent):
        try:
            store = open_store(place, model.image.encoder)
        except StoreError:  # another encoder made it, or it is damaged: use the images
            continue
        named = model.image.encoder.fingerprint is not None or not model.image.encoder.backbone.reads_images
        if store is not None and named:
            return StoredFeatures(model, store)
    return None


def _of_run(run: Path) -> list[Path]:
    """Return the folders of a run's stores: its own, and the one that its recipe names."""
    places = [run / "features"]
    try:
        named = parse_yaml(read_text(run / "recipe.yaml"))["data"]["features"]
        places += [Path(named)] if isinstance(named, str) else []
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        pass  # not a run of openvse
    return [place for place in places if (place / MANIFEST).is_file() or any(place.glob(f"*/{MANIFEST}"))]
