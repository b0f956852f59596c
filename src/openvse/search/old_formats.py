"""Indexes of formats 1 and 2: one file of embeddings, and the images in JSON lines. They are read for good."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import IndexFormatError
from openvse.files import checksum
from openvse.search.database import Table, encode_id
from openvse.search.manifest import Item, Manifest, damaged
from openvse.search.segments import Segment


@dataclass(frozen=True)
class OldIndex:
    """What an index of format 1 or 2 holds.

    Attributes:
        manifest: what it says of itself.
        items: the images in the order of their rows.
        vectors: their embeddings, memory-mapped.
    """

    manifest: Manifest
    items: tuple[Item, ...]
    vectors: Float[np.ndarray, "count K D"]

    def arranged(self) -> tuple[Table, Segment]:
        """Return the images in the order of their ids, and the embeddings as a segment."""
        order = np.array(
            sorted(range(len(self.items)), key=lambda row: encode_id(self.items[row].id)), np.int64
        )
        positions = np.empty(len(order), np.int32)
        positions[order] = np.arange(len(order))
        items = [self.items[row] for row in order]
        zeros = np.zeros(len(order), np.int64)
        table = Table(
            ids=[item.id for item in items],
            keys=zeros,
            modified_ns=np.array([item.modified_ns for item in items], np.int64),
            sizes=np.array([item.size for item in items], np.int64),
            roots=zeros,
            segments=zeros,
            rows=order,
            checksums=zeros,
        )
        return table, Segment(self.vectors, positions)


def open_old(folder: Path, manifest: Manifest) -> OldIndex:
    """Open a finished index of format 1 or 2.

    Raises:
        IndexFormatError: it is damaged.
    """
    try:
        items = _read_items(folder, manifest, None)
        vectors = np.load(folder / manifest.vectors, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise damaged(folder, str(error)) from error
    expected = (manifest.count, manifest.num_embeddings, manifest.dim)
    if vectors.shape != expected or vectors.dtype != manifest.dtype or len(items) != manifest.count:
        content = f"{len(items)} images, {vectors.dtype} {list(vectors.shape)}"
        raise damaged(folder, f"it holds {content} instead of {manifest.dtype} {list(expected)}")
    return OldIndex(manifest, items, vectors)


def open_old_unfinished(folder: Path, manifest: Manifest) -> OldIndex | None:
    """Open what an interrupted indexing of format 2 embedded; None where nothing can be used."""
    try:
        items = _read_items(folder, manifest, manifest.count)
        shape = (manifest.count, manifest.num_embeddings, manifest.dim)
        path = folder / manifest.vectors
        compare_old(folder, manifest, int(np.prod(shape)) * np.dtype(manifest.dtype).itemsize)
        vectors = np.memmap(path, manifest.dtype, "c", _data_offset(path), shape)
    except (IndexFormatError, OSError, ValueError, TypeError, EOFError):
        return None
    return OldIndex(manifest, items, vectors)


def compare_old(folder: Path, manifest: Manifest, size: int) -> None:
    """Compare the embeddings with their checksum, if the index has one.

    Args:
        folder: of the index.
        manifest: what it says of itself.
        size: bytes of the embeddings.

    Raises:
        IndexFormatError: they are not what was written.
    """
    if manifest.checksums is not None:
        path = folder / manifest.vectors
        _compare(folder, manifest, "vectors", checksum(path, skip=_data_offset(path), size=size))


def finite_rows(vectors: Float[np.ndarray, "count K D"], block: int = 1 << 14) -> Int[np.ndarray, "n"]:
    """Return the rows without NaN and infinite numbers, holding some rows at a time."""
    found = [
        start + np.flatnonzero(np.isfinite(vectors[start : start + block]).all(axis=(1, 2)))
        for start in range(0, len(vectors), block)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _read_items(folder: Path, manifest: Manifest, count: int | None) -> tuple[Item, ...]:
    """Read the images, or the first of them."""
    with (folder / manifest.items).open("rb") as file:
        lines = list(islice(file, count))
    if manifest.checksums is not None:
        _compare(folder, manifest, "items", crc32(b"".join(lines)))
    return tuple(Item(**json.loads(line)) for line in lines)


def _compare(folder: Path, manifest: Manifest, name: Literal["items", "vectors"], found: int) -> None:
    if (manifest.checksums or {}).get(name) != found:
        raise damaged(folder, f"{getattr(manifest, name)} does not match its checksum")


def _data_offset(path: Path) -> int:
    """Return where the numbers of an ``.npy`` file begin."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return file.tell()
