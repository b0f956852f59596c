"""The output of an encoding: NumPy arrays beside lists of ids, or Parquet; one file, or a folder of files by shard.

The same content makes the same bytes. One file is joined from the shards in the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError, OpenVSEError, install
from openvse.files import LOCK, read_text, replacing

Form = Literal["npy", "parquet"]

MANIFEST = "encoding.json"
WORK = ".unfinished"

_Rows = tuple[Sequence[str], np.ndarray, Sequence[str] | None]  # ids, embeddings, perhaps sentences


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard.

    Attributes:
        rows: the number of its records; without any there are no files.
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


@dataclass(frozen=True)
class Target:
    """The place of an encoding.

    Attributes:
        out: the file or folder that was asked for.
        form: the form of the output.
        single: whether it is one file.
    """

    out: Path
    form: Form
    single: bool

    @property
    def shard_form(self) -> Form:
        """The form in which shards are written: that of the folder; one file is joined from arrays."""
        return "npy" if self.single else self.form

    @property
    def folder(self) -> Path:
        """The folder that is locked while it is written to."""
        return self.work if self.single else self.out

    @property
    def work(self) -> Path:
        """The folder of unfinished work, which is removed at the end."""
        return self.out.with_name(f".{self.out.name}.unfinished") if self.single else self.out / WORK

    @property
    def shards(self) -> Path:
        """The folder of the shards."""
        return self.work if self.single else self.out

    @property
    def manifest(self) -> Path:
        """The file that describes the output; it is written last."""
        return self.out.with_name(f"{self.out.name}.json") if self.single else self.out / MANIFEST

    @property
    def ids(self) -> Path:
        """The file of the ids beside one array."""
        return self.out.with_name(f"{self.out.stem}_ids.txt")

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the content of the manifest; None if there is none."""
        try:
            manifest = json.loads(read_text(self.manifest))
        except (OSError, ValueError):
            return None
        return (
            manifest if isinstance(manifest, dict) and manifest.get("format") == "openvse-encoding" else None
        )

    def taken(self) -> Path | None:
        """Return a file of somebody else that the output would replace."""
        if self.single:
            names = [self.out, self.manifest, *([self.ids] if self.form == "npy" else [])]
            began = self.work.exists() and any(self.work.glob("*.json"))
            return None if began else next(filter(Path.exists, names), None)
        if self.work.exists():
            return None
        mine = [path for path in self.out.iterdir() if path.name != LOCK] if self.out.is_dir() else []
        return mine[0] if mine else None

    def is_whole(self, manifest: dict[str, Any]) -> bool:
        """Return whether the files of a finished output are all there."""
        try:
            return all(
                (self.manifest.parent / name).stat().st_size == size
                for part in manifest["parts"]
                for name, size in part["sizes"].items()
            )
        except OSError:
            return False

    def join(
        self,
        shards: Sequence[ShardFiles],
        dtype: str,
        good: Iterable[tuple[list[str], list[str]]],
        kind: str,
    ) -> list[ShardFiles]:
        """Join the shards if one file is wanted, and return the files of the output.

        Args:
            shards: the shards with rows.
            dtype: the type of their numbers.
            good: ids and sources of the records of each.
            kind: images or texts.
        """
        if not self.single:
            return list(shards)
        names, rows, first = [self.out], sum(shard.rows for shard in shards), shards[0]
        if self.form == "npy":
            names.append(self.ids)
            with replacing(self.ids) as partial:
                partial.write_bytes(_id_lines([item for ids, _ in good for item in ids]))
            shape = (
                (rows, first.dim) if first.num_embeddings == 1 else (rows, first.num_embeddings, first.dim)
            )
            with replacing(self.out) as partial, partial.open("wb") as file:
                _write_header(file, shape, np.dtype(dtype))
                for shard in shards:
                    file.write(np.load(self.shards / shard.vectors, mmap_mode="r", allow_pickle=False).data)
        else:
            blocks = (
                (ids, np.load(self.shards / shard.vectors, mmap_mode="r"), texts if kind == "texts" else None)
                for shard, (ids, texts) in zip(shards, good, strict=True)
            )
            with replacing(self.out) as partial:
                _write_parquet(partial, blocks)
        sizes = {path.name: path.stat().st_size for path in names}
        return [ShardFiles(rows, first.num_embeddings, first.dim, sizes)]

    def tidy(self, written: Sequence[ShardFiles]) -> None:
        """Remove files that the output does not need: notes, joined shards, and files of an earlier output."""
        shutil.rmtree(self.work, ignore_errors=True)
        if self.single:
            return
        named = {name for each in written for name in each.sizes}
        for pattern in ("embeddings-*", "ids-*.txt"):
            for path in self.out.glob(pattern):
                if path.name not in named:
                    with suppress(OSError):
                        path.unlink()


def target_of(out: Path, form: Form | None) -> Target:
    """Return the place of an encoding by the name that was given.

    Raises:
        DataError: the name and the form contradict each other, or a file is where the folder should be.
        OpenVSEError: pyarrow is needed and not installed.
    """
    suffix = out.suffix.lower()
    by_name: Form | None = "npy" if suffix == ".npy" else "parquet" if suffix == ".parquet" else None
    is_single = by_name is not None and not out.is_dir()
    if is_single and form not in (None, by_name):
        raise DataError(f"{out} names a file of {by_name}, not of {form}: leave --format out, or rename it")
    if not is_single and out.is_file():
        raise DataError(f"{out} is a file: give a folder, or a file that ends with .npy or .parquet")
    chosen = by_name if is_single else form
    if chosen == "parquet":
        import_parquet()
    return Target(out, chosen or "npy", single=is_single)


def write_shard(
    folder: Path,
    form: Form,
    number: int,
    ids: Sequence[str],
    vectors: Float[np.ndarray, "B K D"],
    texts: Sequence[str] | None = None,
) -> ShardFiles:
    """Write the files of a shard, each of which is complete at every moment.

    Args:
        form: NumPy or Parquet.
        ids: the ids of the records.
        vectors: their embeddings.
        texts: their sentences, which Parquet keeps in a column.

    Raises:
        DiskError: the disk refuses.
    """
    if not len(ids):
        return ShardFiles(0, 0, 0)
    names = [f"embeddings-{number:05d}.{form}"]
    if form == "parquet":
        with replacing(folder / names[0]) as partial:
            _write_parquet(partial, [(ids, vectors, texts)])
    else:
        names.append(f"ids-{number:05d}.txt")
        with replacing(folder / names[1]) as partial:
            partial.write_bytes(_id_lines(ids))
        with replacing(folder / names[0]) as partial, partial.open("wb") as file:
            array = np.ascontiguousarray(vectors[:, 0] if vectors.shape[1] == 1 else vectors)
            _write_header(file, array.shape, array.dtype)
            file.write(array.data)
    sizes = {name: (folder / name).stat().st_size for name in names}
    return ShardFiles(len(ids), vectors.shape[1], vectors.shape[2], sizes)


def _id_lines(ids: Sequence[str]) -> bytes:
    """Return ids as lines; names of files that are not UTF-8 keep their bytes."""
    return b"".join(os.fsencode(item) + b"\n" for item in ids)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an array; ``np.save`` would not notice a full disk."""
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _write_parquet(target: Path, blocks: Iterable[_Rows]) -> None:
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
    """Return pyarrow and its Parquet module; raise OpenVSEError if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OpenVSEError(f"Parquet needs pyarrow: {install('parquet')}") from error
    return pyarrow, parquet
