"""Parquet and Arrow files: their rows without the images, and the images by their positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Record
from openvse.datasets.fields import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    SPLIT_FIELD,
    first_field,
    read_captions,
    read_split,
)
from openvse.errors import BadImageError, DataError, OpenVSEError
from openvse.media.packed import ImageFile, PackedFile

ARROW_SUFFIXES = (".parquet", ".arrow")
"""The suffixes of the files that this module reads."""

_PARTS_AT_ONCE = 2  # the number of row groups that a process keeps: one that is read in order, and one more


@dataclass(frozen=True, slots=True)
class TableCell(PackedFile):
    """An image in a cell of a Parquet or Arrow file.

    Reading it reads the row group of the cell, which is kept for the next cells: reading images is cheap in their
    order, and expensive in another order if row groups are large.

    Attributes:
        file: the table.
        part: the number of the row group or record batch.
        row: the position in it.
        column: the column of the cell: ``image.bytes`` in the Hugging Face hub's format.
        label: the name of the image.
    """

    file: Path
    part: int
    row: int
    column: str
    label: str

    @property
    def container(self) -> Path:
        """The table."""
        return self.file

    @property
    def name(self) -> str:
        """The name of the image."""
        return self.label

    def read_bytes(self) -> bytes:
        """Read the cell; raise BadImageError if it is empty or the table is damaged."""
        try:
            value = _column(self.file, self.part, self.column)[self.row].as_py()
        except (OSError, IndexError, ValueError) as error:
            raise BadImageError(f"the table cannot be read ({error})") from error
        if not isinstance(value, bytes):
            raise BadImageError("its cell is empty")
        return value


def read_arrow(path: Path) -> Iterator[Record]:
    """Yield a record for each row of a Parquet or Arrow file; identifiers are the names of images in it, or "".

    The column of images holds paths (relative to the file), the bytes of images, or both, as on the Hugging Face hub:
    a structure of ``bytes`` and ``path``. Captions are strings or lists of strings.

    Args:
        path: the file.

    Raises:
        DataError: the file is damaged, or a column is missing or has another type; it is named, with the row.
        OpenVSEError: pyarrow is not installed.
    """
    pa = import_pyarrow()
    try:
        yield from _records(path, *_columns(path, opened(path).schema))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: it cannot be read ({error}); get the whole file again") from error


def import_pyarrow() -> Any:
    """Return pyarrow; raise OpenVSEError, which names the extra, if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise OpenVSEError("Parquet and Arrow files need pyarrow: pip install 'openvse[parquet]'") from error
    return pyarrow


def is_captioned(path: Path) -> bool:
    """Return whether a table has columns of images and captions; raise OpenVSEError if pyarrow is not installed."""
    pa = import_pyarrow()
    try:
        names = opened(path).schema.names
    except (pa.ArrowException, OSError):
        return False
    return first_field(names, IMAGE_FIELDS) is not None and first_field(names, CAPTION_FIELDS) is not None


def largest_part(path: Path) -> int:
    """Return the bytes in memory of the largest row group of a Parquet file; 0 for an Arrow file."""
    if path.suffix.lower() != ".parquet":
        return 0
    metadata = _parquet(path).metadata
    return max((metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)), default=0)


@dataclass(frozen=True)
class OpenTable:
    """A table that is open: its schema, and how many row groups or record batches it has."""

    schema: Any
    num_parts: int


def opened(path: Path) -> OpenTable:
    """Open a Parquet or Arrow file."""
    if path.suffix.lower() == ".parquet":
        file = _parquet(path)
        return OpenTable(file.schema_arrow, file.metadata.num_row_groups)
    batches = _batches(path)
    return OpenTable(batches.schema, len(batches.parts))


def _columns(path: Path, schema: Any) -> tuple[str, str, str]:
    """Return the columns of the image's bytes, of its path ("" if there is none) and of the captions."""
    pa = import_pyarrow()
    image, captions = first_field(schema.names, IMAGE_FIELDS), first_field(schema.names, CAPTION_FIELDS)
    if image is None or captions is None:
        allowed = IMAGE_FIELDS if image is None else CAPTION_FIELDS
        raise DataError(
            f"{path}: no column {' or '.join(allowed)} (found: {', '.join(schema.names)}); rename the column"
        )
    kind = schema.field(image).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "", image, captions
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return image, "", captions
    if pa.types.is_struct(kind):
        inner = {kind.field(n).name for n in range(kind.num_fields)}
        if "bytes" in inner or "path" in inner:
            return (
                f"{image}.bytes" if "bytes" in inner else "",
                f"{image}.path" if "path" in inner else "",
                captions,
            )
    raise DataError(
        f"{path}: column {image!r} has the type {kind}: give paths (string), the bytes of images (binary), or a "
        "structure of bytes and path"
    )


def _records(path: Path, content: str, name: str, captions: str) -> Iterator[Record]:
    number = 0
    for part in range(opened(path).num_parts):
        rows = _rows(path, part, (name, captions, SPLIT_FIELD))
        packed = content and not _only_paths(path, part, content)
        for row, entry in enumerate(rows):
            label = _inner(entry, name) or ""
            if not isinstance(label, str):
                raise DataError(f"{path}, row {number}: {name!r} must be a string")
            try:
                said, split = read_captions(entry), read_split(entry)
            except DataError as error:
                raise DataError(f"{path}, row {number}: {error}") from None
            place: ImageFile = path.parent / label
            if packed:
                place = TableCell(path, part, row, content, label or f"row {number}")
            yield Record(label, place, said, split)
            number += 1


def _inner(entry: dict[str, Any], column: str) -> Any:
    outer, _, inner = column.partition(".")
    value = entry.get(outer)
    return value.get(inner) if inner and isinstance(value, dict) else value


def _rows(path: Path, part: int, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of a row group with only these columns, as far as they exist."""
    schema = opened(path).schema
    present = [column for column in columns if column and column.partition(".")[0] in schema.names]
    if path.suffix.lower() == ".parquet":
        rows: list[dict[str, Any]] = _parquet(path).read_row_group(part, columns=present).to_pylist()
        return rows
    batch = _batches(path).parts[part]
    cells = {column: _arrow_column(batch, column).to_pylist() for column in present}
    return [
        {
            column.partition(".")[0]: {column.partition(".")[2]: value} if "." in column else value
            for column, value in zip(cells, row, strict=True)
        }
        for row in zip(*cells.values(), strict=True)
    ]


def _only_paths(path: Path, part: int, column: str) -> bool:
    """Return whether a row group has no bytes in its column of images, so that its paths name files."""
    if path.suffix.lower() != ".parquet":
        values = _arrow_column(_batches(path).parts[part], column)
        return bool(values.null_count == len(values))
    group = _parquet(path).metadata.row_group(part)
    chunks = (group.column(n) for n in range(group.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    return bool(chunk.statistics is not None and chunk.statistics.null_count == chunk.num_values)


def _arrow_column(batch: Any, column: str) -> Any:
    outer, _, inner = column.partition(".")
    values = batch.column(batch.schema.get_field_index(outer))
    return values.field(inner) if inner else values


def _parquet(path: Path) -> Any:
    """Return an open Parquet file, which is opened again if it was rewritten."""
    return _opened_parquet(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _opened_parquet(path: Path, modified_ns: int) -> Any:
    import_pyarrow()
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path)


@dataclass(frozen=True)
class _Batches:
    schema: Any
    parts: list[Any]


def _batches(path: Path) -> _Batches:
    """Map an Arrow file into memory; a batch is read when one of its cells is read."""
    return _opened_batches(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _opened_batches(path: Path, modified_ns: int) -> _Batches:
    pa = import_pyarrow()
    source = pa.memory_map(str(path))
    try:
        reader = pa.ipc.open_stream(source)  # the form that the library datasets writes
        return _Batches(reader.schema, list(reader))
    except pa.ArrowInvalid:
        file = pa.ipc.open_file(source)
        return _Batches(file.schema, [file.get_batch(n) for n in range(file.num_record_batches)])


def _column(path: Path, part: int, column: str) -> Any:
    """Return the column of images of one row group."""
    return _read_column(path, path.stat().st_mtime_ns, part, column)


@lru_cache(maxsize=_PARTS_AT_ONCE)
def _read_column(path: Path, modified_ns: int, part: int, column: str) -> Any:
    if path.suffix.lower() != ".parquet":
        return _arrow_column(_batches(path).parts[part], column)
    table = _parquet(path).read_row_group(part, columns=[column], use_threads=False)
    outer, _, inner = column.partition(".")
    values = table.column(outer).combine_chunks()
    values = values.chunk(0) if hasattr(values, "num_chunks") else values
    return values.field(inner) if inner else values
