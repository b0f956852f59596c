"""The output of an encoding: NumPy arrays beside lists of ids, or Parquet; one file, or a folder of files by shard.

The same content makes the same bytes. Everything is written into a folder of unfinished work. In the end the files take
their places together: what an earlier output had there is removed first, so that new ids never stand beside old
embeddings.
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
from openvse.files import LOCK, parse_json, read_text, replacing, write_whole, writing

Form = Literal["npy", "parquet"]

FORMAT = "openvse-encoding"
MANIFEST = "encoding.json"
_OURS = ("embeddings-*", "ids-*.txt")  # of a folder; the embeddings first

_Rows = tuple[Sequence[str], np.ndarray, Sequence[str] | None]  # ids, embeddings, perhaps sentences


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard.

    Attributes:
        rows: the number of its records; without any there are no files.
        num_embeddings: K; 0 without rows.
        dim: D; 0 without rows.
        sizes: the bytes of each file, by its name; the embeddings come first.
    """

    rows: int
    num_embeddings: int
    dim: int
    sizes: dict[str, int] = field(default_factory=dict)


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
        name = f".{self.out.name}.unfinished"
        return self.out.with_name(name) if self.single else self.out / ".unfinished"

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
        with suppress(OSError, DataError, ValueError):
            manifest = parse_json(read_text(self.manifest))
            if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
                return manifest
        return None

    def taken(self) -> Path | None:
        """Return a file of somebody else that the output would replace."""
        if any(self.work.glob("*.json")):
            return None
        if self.single:
            names = [self.out, self.manifest, *([self.ids] if self.form == "npy" else [])]
            return next(filter(Path.exists, names), None)
        mine = (path for path in sorted(self.out.glob("*")) if path not in (self.out / LOCK, self.work))
        return next(mine, None)

    def holds(self, sizes: dict[str, int]) -> bool:
        """Return whether files of the output are whole, at their places or among the unfinished work."""
        return all(
            any(_size(folder / name) == size for folder in (self.work, self.manifest.parent))
            for name, size in sizes.items()
        )

    def write(
        self,
        shards: Sequence[ShardFiles],
        good: Sequence[tuple[list[str], list[str]]],
        about: dict[str, Any],
    ) -> None:
        """Put the files of the shards, or one file joined from them, at their places, and then describe them.

        Args:
            shards: the shards with rows.
            good: ids and sources of the records of each.
            about: the content of the manifest, but for the files.
        """
        parts = [self._joined(shards, good, about)] if self.single else list(shards)
        with writing(self.out):
            self.manifest.unlink(missing_ok=True)
            for path in self._earlier({name for part in parts for name in part.sizes}):
                path.unlink(missing_ok=True)
            for part in parts:
                for name in reversed(part.sizes):
                    with suppress(FileNotFoundError):  # it was moved before an interruption
                        (self.work / name).replace(self.manifest.parent / name)
        content = {"format": FORMAT, "version": 1, **about, "parts": [vars(part) for part in parts]}
        write_whole(self.manifest, json.dumps(content, indent=1) + "\n")
        self.tidy()

    def tidy(self) -> None:
        """Remove the unfinished work."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _earlier(self, names: set[str]) -> list[Path]:
        """Return the files of an earlier output, embeddings first, without those that have been moved there."""
        if self.single:
            return [self.out, *([self.ids] if self.form == "npy" else [])]
        there = (path for pattern in _OURS for path in sorted(self.out.glob(pattern)))
        return [path for path in there if path.name not in names or (self.work / path.name).exists()]

    def _joined(
        self,
        shards: Sequence[ShardFiles],
        good: Sequence[tuple[list[str], list[str]]],
        about: dict[str, Any],
    ) -> ShardFiles:
        """Join the shards to one output among the unfinished work."""
        rows, first, made = sum(shard.rows for shard in shards), shards[0], self.work / self.out.name
        names = [self.out.name]
        arrays = (np.load(self.work / next(iter(shard.sizes)), mmap_mode="r") for shard in shards)
        if self.form == "npy":
            names.append(self.ids.name)
            with replacing(self.work / self.ids.name) as partial:
                partial.write_bytes(_id_lines([item for ids, _ in good for item in ids]))
            shape = (rows, first.num_embeddings, first.dim)
            _write_array(made, shape, np.dtype(about["dtype"]), (array.data for array in arrays))
        else:
            has_texts = about["kind"] == "texts"
            with replacing(made) as partial:
                _write_parquet(
                    partial,
                    (
                        (ids, array, texts if has_texts else None)
                        for array, (ids, texts) in zip(arrays, good, strict=True)
                    ),
                )
        sizes = {name: (self.work / name).stat().st_size for name in names}
        return ShardFiles(rows, first.num_embeddings, first.dim, sizes)


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
        _import_parquet()
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
        array = np.ascontiguousarray(vectors)
        _write_array(folder / names[0], array.shape, array.dtype, [array.data])
    sizes = {name: (folder / name).stat().st_size for name in names}
    return ShardFiles(len(ids), vectors.shape[1], vectors.shape[2], sizes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _id_lines(ids: Sequence[str]) -> bytes:
    """Return ids as lines; names of files that are not UTF-8 keep their bytes."""
    return b"".join(os.fsencode(item) + b"\n" for item in ids)


def _write_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[memoryview]
) -> None:
    """Write an array, ``[B, D]`` where K is 1; ``np.save`` would not notice a full disk."""
    rows, num_embeddings, dim = shape
    whole = (rows, dim) if num_embeddings == 1 else shape
    descr = np.lib.format.dtype_to_descr(dtype)
    with replacing(path) as partial, partial.open("wb") as opened:
        file: BinaryIO = opened
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": whole})
        for part in parts:
            file.write(part)


def _write_parquet(target: Path, blocks: Iterable[_Rows]) -> None:
    """Write ids, embeddings and perhaps sentences as Parquet, a row group for each block.

    A row is an embedding: ``id``, ``part`` (0 to K - 1, only for models of K > 1 embeddings), ``text`` (of sentences)
    and ``vector``, a list of D numbers. Bytes of a file's name that are not UTF-8 are written as escapes.
    """
    pa, parquet = _import_parquet()
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
    columns: dict[str, Any] = {"id": pa.array(_repeated(ids, num_embeddings), pa.string())}
    if num_embeddings > 1:
        columns["part"] = pa.array(np.tile(np.arange(num_embeddings, dtype=np.int16), count))
    if texts is not None:
        columns["text"] = pa.array(_repeated(texts, num_embeddings), pa.string())
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    columns["vector"] = pa.FixedSizeListArray.from_arrays(values, dim)
    return pa.table(columns)


def _repeated(texts: Sequence[str], times: int) -> list[str]:
    clean = (text.encode("utf-8", "backslashreplace").decode() for text in texts)
    return [text for text in clean for _ in range(times)]


def _import_parquet() -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and its Parquet module; raise OpenVSEError if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OpenVSEError(f"Parquet needs pyarrow: {install('parquet')}") from error
    return pyarrow, parquet
