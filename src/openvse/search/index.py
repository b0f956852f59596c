"""The index on disk: embeddings of a folder of images, and which image each belongs to.

    index.json            the manifest: format, model, root of the images, shape, names of the other two
    vectors-<id>.npy      embeddings: float [count, K, D]
    items-<id>.jsonl      path below the root, time and size of each image, one a line

The manifest is replaced last and by rename: at every moment an index is the old one or the new one, whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import IndexFormatError
from openvse.files import write_whole

VectorDtype = Literal["float16", "float32"]

FORMAT = "openvse-index"
VERSION = 1
MANIFEST = "index.json"


@dataclass(frozen=True)
class Item:
    """An image as it was when it was indexed; an image that differs in any of these is embedded again.

    Attributes:
        id: path below the indexed folder, with forward slashes.
        modified_ns: time of its last change.
        size: bytes of the file.
    """

    id: str
    modified_ns: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """What ``index.json`` says.

    Attributes:
        model: fingerprint of the model that made the embeddings.
        root: the indexed folder, absolute.
        count: images.
        num_embeddings: K.
        dim: D.
        dtype: how a number is stored.
        created: UTC, ISO 8601.
        vectors: name of the file of embeddings.
        items: name of the file of images.
    """

    model: str
    root: str
    count: int
    num_embeddings: int
    dim: int
    dtype: VectorDtype
    created: str
    vectors: str
    items: str

    def write(self, folder: Path) -> None:
        """Make this the manifest of the folder, by rename."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


class Index:
    """Embeddings of images, memory-mapped; made by ``build_index``.

    Attributes:
        path: folder of the index.
        manifest: what made it, and its shape.
        items: the images, sorted by path.
        vectors: ``[count, K, D]``, of which only what is read comes into memory.

    Examples:
        >>> index = Index.open("index", model.fingerprint)  # doctest: +SKIP
        >>> len(index), index.items[0].id  # doctest: +SKIP
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        items: tuple[Item, ...],
        vectors: Float[np.ndarray, "count K D"],
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.items = items
        self.vectors = vectors

    @classmethod
    def open(cls, path: str | Path, model_fingerprint: str | None = None) -> Index:
        """Open an index for reading.

        Args:
            path: its folder.
            model_fingerprint: the model that must have made it; None takes any.

        Raises:
            IndexFormatError: it is missing, damaged, of another format version, or made by another model.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        check_model(folder, manifest, model_fingerprint)
        try:
            items = tuple(_read_items(folder / manifest.items))
            # Copy-on-write because torch wants memory that could be written; nothing reaches the file.
            vectors = np.load(folder / manifest.vectors, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, TypeError) as error:
            raise _damaged(folder, str(error)) from error
        expected = (manifest.count, manifest.num_embeddings, manifest.dim)
        if vectors.shape != expected or vectors.dtype != manifest.dtype or len(items) != manifest.count:
            content = f"{len(items)} images, {vectors.dtype} {list(vectors.shape)}"
            raise _damaged(folder, f"it holds {content} instead of {manifest.dtype} {list(expected)}")
        return cls(folder, manifest, items, vectors)

    def __len__(self) -> int:
        return len(self.items)

    def check(self) -> None:
        """Read all embeddings, a block at a time.

        Raises:
            IndexFormatError: some hold NaN or infinite numbers; the first of their images is named.
        """
        bad = not_finite(self.vectors)
        if len(bad):
            raise _damaged(
                self.path,
                f"the embeddings of {len(bad)} images hold NaN or infinite numbers, first {self.items[bad[0]].id}",
            )

    def image_path(self, position: int) -> Path:
        """Return the path of an image."""
        return Path(self.manifest.root, self.items[position].id)


def not_finite(vectors: Float[np.ndarray, "count K D"], block: int = 1 << 14) -> Int[np.ndarray, "n"]:
    """Return the positions of the items with a number that is NaN or infinite, holding some items at a time."""
    found = [
        start + np.flatnonzero(~np.isfinite(vectors[start : start + block]).all(axis=(1, 2)))
        for start in range(0, len(vectors), block)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def check_model(folder: Path, manifest: Manifest, fingerprint: str | None) -> None:
    """Raise IndexFormatError unless the model made the index: embeddings of two models cannot be compared."""
    if fingerprint not in (None, manifest.model):
        raise IndexFormatError(
            f"index {folder} was made by model {manifest.model}, not by {fingerprint}: use that model, "
            f"or run 'openvse index' again with this one"
        )


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise IndexFormatError(f"no index at {folder} (no {MANIFEST}): make one with 'openvse index'")
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        kind = fields.pop("format"), fields.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(folder, f"{MANIFEST} cannot be understood") from error
    if kind != (FORMAT, VERSION):
        raise IndexFormatError(
            f"index {folder} has format {kind[0]} {kind[1]}, this openvse reads {FORMAT} {VERSION}: "
            f"run 'openvse index' again"
        )
    try:
        return Manifest(**fields)
    except TypeError as error:
        raise _damaged(folder, f"{MANIFEST} cannot be understood") from error


def _read_items(path: Path) -> Iterator[Item]:
    with path.open() as lines:
        yield from (Item(**json.loads(line)) for line in lines)


def _damaged(folder: Path, what: str) -> IndexFormatError:
    return IndexFormatError(f"index {folder} is damaged ({what}): run 'openvse index' again")
