"""The index on disk: the embeddings of a folder of images, and the image that each belongs to.

    index.json            the manifest: format, model, root of the images, shape, names of the other two files
    vectors-<id>.npy      the embeddings: float [count, K, D]
    items-<id>.jsonl      one image per line: its path below the root, its time and its size
    unfinished.json       a manifest of the embeddings of an interrupted indexing; the next indexing continues with it

The manifest is replaced last, and by a rename, so that an index is complete at every moment: either the old one or the
new one. It holds checksums of both files. Format 1 had neither checksums nor the place of the model; openvse will
always read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import IndexFormatError, IndexVersionError
from openvse.files import checksum, write_whole

VectorDtype = Literal["float16", "float32"]

FORMAT = "openvse-index"
VERSION = 2
MANIFEST = "index.json"
UNFINISHED = "unfinished.json"

SMALL_BYTES = 1 << 24
"""Vectors up to this size are always compared with their checksum when they are opened, larger ones on request."""


@dataclass(frozen=True)
class Item:
    """An image at the time of its indexing; if any of these values differs, the image is embedded again.

    Attributes:
        id: the path below the indexed folder, with forward slashes.
        modified_ns: the time of the last change of the file, in nanoseconds.
        size: the size of the file, in bytes.
    """

    id: str
    modified_ns: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """The content of ``index.json``.

    Attributes:
        model: the fingerprint of the model that made the embeddings.
        root: the absolute path of the indexed folder.
        count: the number of images.
        num_embeddings: K, the number of embeddings of each image.
        dim: D, the width of an embedding.
        dtype: the number type of the stored embeddings.
        created: the time of the indexing, in UTC and ISO 8601.
        vectors: the name of the file of embeddings.
        items: the name of the file of images.
        checksums: the CRC-32 of the embeddings and of the lines of the images; None in format 1.
        model_place: the place of the model, see ``search.model_place``; None if it is not known.
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
    checksums: dict[str, int] | None = None
    model_place: dict[str, str] | None = None

    def write(self, folder: Path, name: str = MANIFEST) -> None:
        """Write this manifest to the folder and replace the old one by a rename."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_whole(folder / name, json.dumps(content, indent=2) + "\n")


class Index:
    """The memory-mapped embeddings of images, which ``build_index`` made.

    Attributes:
        path: the folder of the index.
        manifest: the manifest, which names the model and the shape.
        items: the images, sorted by path.
        vectors: the embeddings, ``[count, K, D]``; only the rows that are read are loaded into memory.

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
    def open(cls, path: str | Path, model_fingerprint: str | None = None, *, check: bool = False) -> Index:
        """Open an index for reading.

        Args:
            path: the folder of the index.
            model_fingerprint: the fingerprint of the model that must have made the index; None accepts any model.
            check: whether to call ``check``; small files are always compared with their checksums.

        Raises:
            IndexFormatError: the index is missing, damaged, of another format version, or made by another model.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        check_model(folder, manifest, model_fingerprint)
        try:
            items = _read_items(folder, manifest, None)
            # PyTorch needs writable memory; with copy-on-write, nothing is written to the file.
            vectors = np.load(folder / manifest.vectors, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, TypeError, EOFError) as error:
            raise damaged(folder, str(error)) from error
        expected = (manifest.count, manifest.num_embeddings, manifest.dim)
        if vectors.shape != expected or vectors.dtype != manifest.dtype or len(items) != manifest.count:
            content = f"{len(items)} images, {vectors.dtype} {list(vectors.shape)}"
            raise damaged(folder, f"it holds {content} instead of {manifest.dtype} {list(expected)}")
        index = cls(folder, manifest, items, vectors)
        if check:
            index.check()
        elif vectors.nbytes <= SMALL_BYTES:
            index.compare()
        return index

    @classmethod
    def open_unfinished(cls, folder: Path, model_fingerprint: str) -> Index | None:
        """Open the embeddings that an interrupted indexing left; return None if there are none that can be used."""
        try:
            manifest = read_manifest(folder, UNFINISHED)
            check_model(folder, manifest, model_fingerprint)
            items = _read_items(folder, manifest, manifest.count)
            shape = (manifest.count, manifest.num_embeddings, manifest.dim)
            path, row = folder / manifest.vectors, np.dtype(manifest.dtype).itemsize
            _check_vectors(folder, manifest, int(np.prod(shape)) * row)
            vectors = np.memmap(path, manifest.dtype, "c", _data_offset(path), shape)
        except (IndexFormatError, OSError, ValueError, TypeError, EOFError):
            return None
        return cls(folder, manifest, items, vectors)

    def __len__(self) -> int:
        return len(self.items)

    def check(self) -> None:
        """Compare all embeddings with their checksum, and look for NaN and infinite numbers, block by block.

        Raises:
            IndexFormatError: the embeddings have changed, or some hold NaN or infinite numbers; the message names the
                first of these images.
        """
        self.compare()
        bad = not_finite(self.vectors)
        if len(bad):
            raise damaged(
                self.path,
                f"the embeddings of {len(bad)} images hold NaN or infinite numbers, first {self.items[bad[0]].id}",
            )

    def compare(self) -> None:
        """Compare the embeddings with their checksum, if the index has one.

        Raises:
            IndexFormatError: the embeddings have changed.
        """
        _check_vectors(self.path, self.manifest, self.vectors.nbytes)

    def image_path(self, position: int) -> Path:
        """Return the path of an image."""
        return Path(self.manifest.root, self.items[position].id)


def not_finite(vectors: Float[np.ndarray, "count K D"], block: int = 1 << 14) -> Int[np.ndarray, "n"]:
    """Return the positions of the items with NaN or infinite numbers, reading ``block`` items at a time."""
    found = [
        start + np.flatnonzero(~np.isfinite(vectors[start : start + block]).all(axis=(1, 2)))
        for start in range(0, len(vectors), block)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def check_model(folder: Path, manifest: Manifest, fingerprint: str | None) -> None:
    """Raise IndexFormatError unless this model made the index: embeddings of two models cannot be compared."""
    if fingerprint not in (None, manifest.model):
        raise IndexFormatError(
            f"index {folder} was made by model {manifest.model}, not by {fingerprint}: use that model, "
            f"or run 'openvse index --overwrite' with this one"
        )


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Read a manifest.

    Raises:
        IndexFormatError: the manifest is missing, damaged, or of another format version.
    """
    path = folder / name
    if not path.is_file():
        raise IndexFormatError(f"{folder} is not an index (it has no {name}): make one with 'openvse index'")
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        kind = fields.pop("format"), fields.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise damaged(folder, f"{name} cannot be understood") from error
    if kind not in ((FORMAT, 1), (FORMAT, VERSION)):
        raise IndexVersionError(
            f"index {folder} has format {kind[0]} {kind[1]}, but this openvse reads {FORMAT} 1 to {VERSION}: "
            f"update openvse, or run 'openvse index --overwrite'"
        )
    try:
        manifest = Manifest(**fields)
    except TypeError as error:
        raise damaged(folder, f"{name} cannot be understood") from error
    if not all(each is None or isinstance(each, dict) for each in (manifest.checksums, manifest.model_place)):
        raise damaged(folder, f"{name} holds impossible values")
    return manifest


def _read_items(folder: Path, manifest: Manifest, count: int | None) -> tuple[Item, ...]:
    """Read the first ``count`` images; None reads all."""
    with (folder / manifest.items).open("rb") as file:
        lines = list(islice(file, count))
    if manifest.checksums is not None:
        _compare(folder, manifest, "items", crc32(b"".join(lines)))
    return tuple(Item(**json.loads(line)) for line in lines)


def _check_vectors(folder: Path, manifest: Manifest, size: int) -> None:
    if manifest.checksums is not None:
        path = folder / manifest.vectors
        _compare(folder, manifest, "vectors", checksum(path, skip=_data_offset(path), size=size))


def _compare(folder: Path, manifest: Manifest, name: Literal["items", "vectors"], found: int) -> None:
    if (manifest.checksums or {}).get(name) != found:
        raise damaged(folder, f"{getattr(manifest, name)} does not match its checksum")


def _data_offset(path: Path) -> int:
    """Return the byte at which the numbers of an ``.npy`` file begin."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return file.tell()


def damaged(folder: Path, what: str) -> IndexFormatError:
    """Return the error for a damaged index; no indexing leaves such an index, even if it is killed."""
    return IndexFormatError(f"index {folder} is damaged ({what}): run 'openvse index' again")
