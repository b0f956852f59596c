"""The files of an encoding: NumPy arrays beside lists of ids, or Parquet; the same bytes for the same content."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Float

from openvse.errors import OpenVSEError
from openvse.files import replacing

Form = Literal["npy", "parquet"]


@dataclass(frozen=True)
class Part:
    """The files of a shard.

    Attributes:
        rows: how many records it has; without any there are no files.
        num_embeddings: K; 0 without rows.
        dim: D; 0 without rows.
        sizes: the bytes of each file, by its name.
    """

    rows: int
    num_embeddings: int
    dim: int
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def vectors(self) -> str:
        """The name of the file of embeddings."""
        return next(iter(self.sizes))


def write_part(
    folder: Path,
    form: Form,
    number: int,
    ids: Sequence[str],
    vectors: Float[np.ndarray, "B K D"],
    texts: Sequence[str] | None = None,
) -> Part:
    """Write the files of a shard, each of which is complete at every moment.

    Args:
        folder: where.
        form: NumPy or Parquet.
        number: of the shard.
        ids: of the records.
        vectors: their embeddings.
        texts: their sentences, which Parquet keeps in a column.

    Raises:
        DiskError: the disk refuses.
    """
    if not len(ids):
        return Part(0, 0, 0)
    names = [f"embeddings-{number:05d}.{form}"]
    if form == "parquet":
        with replacing(folder / names[0]) as partial:
            write_parquet(partial, [(ids, vectors, texts)])
    else:
        names.append(f"ids-{number:05d}.txt")
        with replacing(folder / names[1]) as partial:
            partial.write_bytes(id_lines(ids))
        with replacing(folder / names[0]) as partial, partial.open("wb") as file:
            array = np.ascontiguousarray(flat(vectors))
            _write_header(file, array.shape, array.dtype)
            file.write(array.data)
    sizes = {name: (folder / name).stat().st_size for name in names}
    return Part(len(ids), vectors.shape[1], vectors.shape[2], sizes)


def id_lines(ids: Sequence[str]) -> bytes:
    """Return ids as lines; names of files that are not UTF-8 keep their bytes."""
    return b"".join(os.fsencode(item) + b"\n" for item in ids)


def flat(vectors: Float[np.ndarray, "B K D"]) -> np.ndarray:
    """Return embeddings as ``[B, D]`` where there is one of each record, and otherwise as they are."""
    return vectors[:, 0] if vectors.shape[1] == 1 else vectors


def join_npy(
    target: Path, ids: Path, folder: Path, parts: Sequence[Part], dtype: str, lines: Sequence[str]
) -> None:
    """Join the arrays of parts to one file, and their ids to another; the array is the last to appear."""
    with replacing(ids) as partial:
        partial.write_bytes(id_lines(lines))
    rows, first = sum(part.rows for part in parts), parts[0]
    shape = (rows, first.dim) if first.num_embeddings == 1 else (rows, first.num_embeddings, first.dim)
    with replacing(target) as partial, partial.open("wb") as file:
        _write_header(file, shape, np.dtype(dtype))
        for part in parts:
            file.write(np.load(folder / part.vectors, mmap_mode="r", allow_pickle=False).data)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an array; ``np.save`` would not notice a full disk."""
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


Rows = tuple[Sequence[str], np.ndarray, Sequence[str] | None]


def write_parquet(target: Path, blocks: Sequence[Rows] | Iterator[Rows]) -> None:
    """Write ids, embeddings and perhaps sentences as Parquet, a row group for each block.

    A row is an embedding: ``id``, ``part`` (0 to K - 1, only for models of K > 1 embeddings), ``text`` (of sentences)
    and ``vector``, a list of D numbers. Bytes of a file's name that are not UTF-8 are written as escapes.
    """
    pa, parquet = import_parquet()
    writer: Any = None
    try:
        for ids, vectors, texts in blocks:
            table = _arrow(pa, ids, vectors if vectors.ndim == 3 else vectors[:, None], texts)
            writer = writer or parquet.ParquetWriter(target, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=len(table))
    finally:
        if writer is not None:
            writer.close()


def _arrow(
    pa: ModuleType, ids: Sequence[str], vectors: Float[np.ndarray, "B K D"], texts: Sequence[str] | None
) -> Any:
    count, num_embeddings, dim = vectors.shape
    names = [item.encode("utf-8", "backslashreplace").decode() for item in ids]
    columns: dict[str, Any] = {"id": pa.array(np.repeat(names, num_embeddings).tolist(), pa.string())}
    if num_embeddings > 1:
        columns["part"] = pa.array(np.tile(np.arange(num_embeddings, dtype=np.int16), count))
    if texts is not None:
        clean = [text.encode("utf-8", "backslashreplace").decode() for text in texts]
        columns["text"] = pa.array([text for text in clean for _ in range(num_embeddings)], pa.string())
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    columns["vector"] = pa.FixedSizeListArray.from_arrays(values, dim)
    return pa.table(columns)


def import_parquet() -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and its Parquet module.

    Raises:
        OpenVSEError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OpenVSEError("Parquet needs pyarrow: pip install 'openvse[parquet]'") from error
    return pyarrow, parquet
