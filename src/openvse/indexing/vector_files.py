"""Files of embeddings that only grow, and that are replaced as a whole."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int

from openvse.indexing.database import VectorFile, encode_id
from openvse.indexing.manifest import IndexManifest, Item

FILE_BYTES = 1 << 28
"""A file of this size is full. Further embeddings go into the next one."""

PATTERN = "vectors-*.npy"

_BLOCK = 1 << 14  # rows


@dataclass(frozen=True)
class MappedVectors:
    """The embeddings in one file, memory-mapped, and the position of the item of each row, or -1 without one."""

    vectors: Float[np.ndarray, "rows K D"]
    positions: Int[np.ndarray, "rows"]


def map_vectors(folder: Path, file: VectorFile, manifest: IndexManifest) -> Float[np.ndarray, "rows K D"]:
    """Map the embeddings of a file into memory. Raise OSError or ValueError if it is no file of such embeddings."""
    path = folder / file.file
    with path.open("rb") as opened:
        np.lib.format.read_magic(opened)
        try:
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(opened)
        except TokenError as error:
            raise ValueError(f"{path.name} has a damaged header") from error
        offset = opened.tell()
    row = manifest.num_embeddings, manifest.dim
    if shape[1:] != row or fortran or dtype != np.dtype(manifest.dtype):
        raise ValueError(f"{path.name} holds {dtype} {list(shape)}")
    # Copy-on-write because torch wants memory that could be written; nothing reaches the file.
    return np.memmap(path, manifest.dtype, "c", offset, (file.rows, *row))


def row_checksum(item: Item, vectors: Float[np.ndarray, "K D"]) -> int:
    """Return the CRC-32 of the embeddings, id, time and size of an item."""
    about = b"%b\0%d\0%d" % (encode_id(item.id), item.modified_ns, item.size)
    return crc32(about, crc32(np.ascontiguousarray(vectors).data))


def finite_rows(vectors: Float[np.ndarray, "count K D"]) -> Int[np.ndarray, "n"]:
    """Return the rows without NaN and infinite numbers, holding some rows at a time."""
    finite = [
        start + np.flatnonzero(np.isfinite(vectors[start : start + _BLOCK]).all(axis=(1, 2)))
        for start in range(0, len(vectors), _BLOCK)
    ]
    return np.concatenate(finite) if finite else np.empty(0, dtype=np.int64)


class VectorWriter:
    """Appends embeddings to a file, after its valid rows, or to a new one."""

    def __init__(self, folder: Path, manifest: IndexManifest, file: VectorFile | None = None) -> None:
        self.path = folder / (f"vectors-{secrets.token_hex(4)}.npy" if file is None else file.file)
        self.rows = 0 if file is None else file.rows
        self._row_shape, self._dtype = (manifest.num_embeddings, manifest.dim), np.dtype(manifest.dtype)
        self._row_bytes = math.prod(self._row_shape) * self._dtype.itemsize
        self._file: BinaryIO = self.path.open("xb" if file is None else "r+b")
        self._offset = self._write_header()
        self._file.seek(self._offset + self.rows * self._row_bytes)

    @property
    def is_full(self) -> bool:
        """Whether the next embeddings belong into another file."""
        return self.rows * self._row_bytes >= FILE_BYTES

    def append(self, vectors: Float[np.ndarray, "B K D"]) -> int:
        """Write embeddings and return the row of the first. ``flush`` makes them durable."""
        first = self.rows
        self._file.write(np.ascontiguousarray(vectors, self._dtype).data)
        self.rows += len(vectors)
        return first

    def flush(self) -> None:
        """Write the rows and their number in the header to the disk."""
        self._write_header()
        self._file.seek(0, os.SEEK_END)
        self._file.truncate(self._offset + self.rows * self._row_bytes)
        self._file.seek(0, os.SEEK_END)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Rows that were not flushed may be lost."""
        self._file.close()

    def _write_header(self) -> int:
        """Write the array's header. numpy leaves room for the first axis to grow, so its size is fixed."""
        descr = np.lib.format.dtype_to_descr(self._dtype)
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": descr, "fortran_order": False, "shape": (self.rows, *self._row_shape)}
        )
        return self._file.tell()
