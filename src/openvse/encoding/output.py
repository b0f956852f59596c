"""The output of an encoding: a NumPy array beside its ids, a Parquet file, or a folder of Parquet files.

The same content makes the same bytes. The manifest names the files of a set, so new ids never accompany old embeddings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError, OpenVSEError, install
from openvse.files import parse_json, read_text, replacing_files, settle

FORMAT = "openvse-encoding"
MANIFEST = "encoding.json"

EncodedBlock = tuple[Sequence[str], Float[np.ndarray, "B K D"], Sequence[str] | None]
"""The ids of some records, their embeddings, and the sentences if they are sentences."""


@dataclass(frozen=True)
class Target:
    """The place of an encoding."""

    out: Path
    single: bool

    @property
    def is_array(self) -> bool:
        """Whether the output is one array."""
        return self.single and self.out.suffix.lower() == ".npy"

    @property
    def work(self) -> Path:
        """The folder of the unfinished index, which is removed at the end."""
        name = f".{self.out.name}.unfinished"
        return self.out.with_name(name) if self.single else self.out / ".unfinished"

    @property
    def manifest(self) -> Path:
        """The file that describes the output. It is written last."""
        return self.out.with_name(f"{self.out.name}.json") if self.single else self.out / MANIFEST

    def files(self) -> list[Path]:
        """Return the present files of the output, or its future files if it is one file. The ids come last."""
        if not self.single:
            return sorted(self.out.glob("embeddings-*.parquet"))
        return [self.out, *([self.out.with_name(f"{self.out.stem}_ids.txt")] if self.is_array else [])]

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the content of the manifest, or None if there is none."""
        settle(self.manifest.parent, self.manifest.name)
        with suppress(OSError, DataError, ValueError):
            manifest = parse_json(read_text(self.manifest))
            if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
                return manifest
        return None

    def holds(self, sizes: dict[str, int]) -> bool:
        """Return whether the files of the output are there, with so many bytes."""
        with suppress(OSError):
            return all((self.manifest.parent / name).stat().st_size == size for name, size in sizes.items())
        return False

    def taken(self) -> Path | None:
        """Return a file of somebody else that the output would replace."""
        if any(self.work.glob("*.json")):
            return None
        there = [self.manifest, *self.files()] if self.single else sorted(self.out.glob("[!.]*"))
        return next((path for path in there if path.exists()), None)

    def write(self, blocks: Iterable[EncodedBlock], count: int, about: dict[str, Any]) -> None:
        """Write an output, which takes the place of an earlier one as a whole."""
        before = [path.name for path in self.files()]
        with replacing_files(self.manifest.parent, self.manifest.name, before) as made:
            if self.is_array:
                vectors, ids = (made / path.name for path in self.files())
                _write_array(vectors, ids, blocks, count)
            elif self.single:
                _write_parquet(made / self.out.name, blocks)
            else:
                for number, block in enumerate(blocks):
                    _write_parquet(made / f"embeddings-{number:05d}.parquet", [block])
            names = before if self.single else sorted(path.name for path in made.glob("*.parquet"))
            sizes = {name: (made / name).stat().st_size for name in names}
            content = {"format": FORMAT, "version": 1, **about, "files": sizes}
            (made / self.manifest.name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def target_of(out: Path) -> Target:
    """Return the place of an encoding by the name of its output."""
    target = Target(out, single=out.suffix.lower() in (".npy", ".parquet") and not out.is_dir())
    if not target.single and out.is_file():
        raise DataError(f"{out} is a file: give a folder, or a file name that ends with .npy or .parquet")
    if not target.is_array:
        _import_parquet()
    return target


def _write_array(vectors: Path, ids: Path, blocks: Iterable[EncodedBlock], count: int) -> None:
    """Write embeddings as an array, ``[count, D]`` where K is 1, and their ids as lines.

    ``np.save`` would not notice a full disk. Names of files that are not UTF-8 keep their bytes.
    """
    with vectors.open("wb") as opened, ids.open("wb") as names:
        file: BinaryIO = opened
        for number, (some, block, _) in enumerate(blocks):
            if not number:
                shape = (count, *(block.shape[2:] if block.shape[1] == 1 else block.shape[1:]))
                descr = np.lib.format.dtype_to_descr(block.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block).data)
            names.write(b"".join(os.fsencode(item) + b"\n" for item in some))


def _write_parquet(target: Path, blocks: Iterable[EncodedBlock]) -> None:
    """Write ids, embeddings and perhaps sentences as Parquet, a row group for each block.

    A row is an embedding: ``id``, ``part`` (0 to K - 1, only for models of K > 1 embeddings), ``text`` (of sentences)
    and ``vector``, a list of D numbers. Bytes of a file's name that are not UTF-8 are written as escapes.
    """
    pa, parquet = _import_parquet()
    writer: Any = None
    try:
        for block in blocks:
            table = _arrow(pa, *block)
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
    """Return pyarrow and its Parquet module. Raise OpenVSEError if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OpenVSEError(f"Parquet needs pyarrow: {install('parquet')}") from error
    return pyarrow, parquet
