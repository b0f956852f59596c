"""Data sets of Parquet or Arrow files, as on the Hugging Face hub: their rows, and images by their positions."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import equal_content
from openvse.datasets.rows import SPLIT_FIELD, USUAL, Columns, check_size, kind_of_value, named_splits, read_record
from openvse.errors import BadImageError, DataError, OpenVSEError, install, message_of
from openvse.media.listing import PackedFile, Problem, walk_files

ARROW_SUFFIXES = (".parquet", ".arrow")
"""The suffixes of the files that this module reads."""

_MOST_TEXT = 1 << 30  # bytes that the texts of a row group take in Python, and those of a small file
_FILE_RATIO = 50  # times that the texts of a larger file may be larger than it
_VALUE, _AGAIN = 64, 8  # bytes in Python of a value without its text, and of one that is there already
_RATIO, _SMALL = 200, 1 << 26  # times that a column may grow when it is decompressed, above so many bytes
_REPEATED = 16  # times that the cells of such a column may repeat it
_FEW_VALUES = 100_000
_PARTS_AT_ONCE = 2  # the number of row groups that a process keeps: one that is read in order, and one more
_LARGE_PART = 512 << 20


def open_parquet(root: Path, *, require_images: bool = True, columns: Columns = USUAL) -> Corpus:
    """Open a folder of Parquet or Arrow files, or one such file, with images and captions.

    Columns are as in ``openvse list data table``. ``image`` holds the bytes of images, or a structure of ``bytes`` and
    ``path`` as on the Hugging Face hub. Images are read from the files when they are needed. Splits come from a column
    ``split``, or otherwise from the names of files or folders (``data/train-00000-of-00002.parquet``). The rows of an
    image may be in several files (see ``identified``). pyarrow is needed (extra ``parquet``).
    """
    folder = root.parent if root.is_file() else root
    files = [root] if root.is_file() else find_arrow(root)
    return arrow_corpus(root, named_splits(files, folder), columns, require_images=require_images)


def arrow_corpus(root: Path, files: Mapping[Path, str], columns: Columns = USUAL, *, require_images: bool) -> Corpus:
    """Join files, each with a split or "", into a corpus. ``root`` gives its name and the base of paths in messages."""
    if not files:
        raise DataError(f"{root}: no {' or '.join(ARROW_SUFFIXES)} file there: check the folder")
    folder = root.parent if root.is_file() else root
    records = [
        replace(record, split=record.split or split)
        for file, split in files.items()
        for record in read_arrow(file, columns)
    ]
    named, problems = identified(records, folder, by_id=bool(columns.id))
    corpus = build_corpus(root.resolve().name, named, require_images=require_images)
    corpus = replace(corpus, problems=(*corpus.problems, *problems))
    sizes = {file: _opened(file).largest_part for file in files}
    large = max(files, key=sizes.__getitem__)
    if sizes[large] <= _LARGE_PART:
        return corpus
    advice = (
        f"row groups of up to {sizes[large] / 2**30:.1f} GiB are held in memory while images are read (first: "
        f"{large}); write the file with row groups of some hundred images"
    )
    return replace(corpus, problems=(*corpus.problems, advice))


def find_arrow(root: Path) -> list[Path]:
    """List the Parquet files below a folder, or if there are none, the Arrow files without caches of transforms."""
    for suffix in ARROW_SUFFIXES:
        files = (path for path in walk_files(root) if path.suffix.lower() == suffix)
        if tables := sorted(path for path in files if not path.name.startswith("cache-")):
            return tables
    return []


def column_names(path: Path) -> list[str]:
    """Return the columns of a table, none if it is damaged. Raise OpenVSEError if pyarrow is not installed."""
    pa = _pyarrow()
    try:
        return list(_opened(path).schema.names)
    except (pa.ArrowException, OSError):
        return []


def read_arrow(path: Path, columns: Columns = USUAL) -> Iterator[Record]:
    """Yield a record for each row of a Parquet or Arrow file. Identifiers are the names of images in it, or "".

    The column of images holds paths (relative to the file), the bytes of images, or both, as on the Hugging Face hub:
    a structure of ``bytes`` and ``path``. Captions are strings or lists of strings.
    """
    with _reading(path):
        yield from _records(path, columns, *_columns(path, _opened(path).schema, columns))


def read_columns(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield some cells of each row by the names of their columns. See ``read_arrow`` for the errors."""
    with _reading(path):
        for cells in _parts(path, names):
            yield from (dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    pa = _pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: it cannot be read ({message_of(error)}): get the whole file again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the text {error.object[:40]!r} is not UTF-8: write it in UTF-8") from error


def identified(records: Sequence[Record], root: Path, *, by_id: bool = False) -> tuple[list[Record], list[Problem]]:
    """Give the rows of tables the identifiers of their images, and report the names of several images.

    Rows with the same name and the same bytes are one image, and so are rows without a name that have the same bytes.
    The name of an image identifies it if each name belongs to one image. Otherwise the file and the number of its first
    row do. A file is named by its path below the root, unless the identifiers come from a column (``by_id``).
    """
    packed = [number for number, record in enumerate(records) if isinstance(record.path, PackedFile)]
    same = _same_images(records, packed)
    contents = Counter(records[first].image_id for first in {same[number] for number in packed})
    several = [name for name, count in contents.items() if count > 1 and name]
    by_name = not several and "" not in contents
    count: dict[Path, int] = {}
    named: list[Record] = []
    for number, record in enumerate(records):
        if isinstance(record.path, PackedFile):
            table = record.path.container
            row = count[table] = count.get(table, -1) + 1
            if (first := same[number]) < number:
                name, place = named[first].image_id, named[first].path
            else:
                rows = f"{table.relative_to(root).with_suffix('').as_posix()}/{row:06d}"
                name, place = record.image_id if by_name else rows, record.path
        else:
            place = record.path
            is_named = by_id or not place.is_relative_to(root)
            name = record.image_id if is_named else place.relative_to(root).as_posix()
        named.append(replace(record, image_id=name, path=place))
    summary = f"{len(several)} name(s) stand for several images with different bytes; files and rows name the images"
    return named, [Problem(summary, several)] if several else []


def _same_images(records: Sequence[Record], packed: Sequence[int]) -> dict[int, int]:
    """Return the first row with the image of each row, without reading rows that have a name of their own."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for number in packed:
        rows[records[number].image_id].append(number)
    first = {number: number for number in packed}
    files = [record.path for record in records]
    for group in rows.values():
        for equal in equal_content(files, group) if len(group) > 1 else ():
            first.update(dict.fromkeys(equal, equal[0]))
    return first


@dataclass(frozen=True, slots=True)
class TableCell(PackedFile):
    """An image in a cell of a Parquet or Arrow file: a row group or record batch, a row in it, and a column.

    The column is ``image.bytes`` in the Hugging Face hub's format. Reading a cell reads its row group, which is kept
    for the next cells. Reading images is cheap in their order, and expensive in another order if row groups are large.
    """

    part: int
    row: int
    column: str

    def read_bytes(self) -> bytes:
        """Read the cell. Raise BadImageError if it is empty or the table is damaged."""
        try:
            modified_ns = self.container.stat().st_mtime_ns
            value = _read_column(self.container, modified_ns, self.part, self.column)[self.row].as_py()
        except (DataError, OSError, IndexError, ValueError) as error:
            raise BadImageError(f"the table cannot be read ({message_of(error)})") from error
        if not isinstance(value, bytes):
            raise BadImageError("its cell is empty")
        return value

    def digest(self) -> bytes:
        """Return a hash of the bytes. The hashes of a whole row group are computed at once, and kept."""
        digest = _digests(self.container, self.container.stat().st_mtime_ns, self.part, self.column)[self.row]
        if not digest:
            raise BadImageError("its cell is empty")
        return digest


def _columns(path: Path, schema: Any, columns: Columns) -> tuple[str, str, list[str]]:
    """Return the columns of the image's bytes, of its path ("" if there is none) and of the captions."""
    pa = _pyarrow()
    if lacking := columns.lacking(schema.names):
        raise DataError(f"{path}: {lacking}")
    image, captions = columns.image_in(schema.names) or "", columns.captions_in(schema.names)
    kind = schema.field(image).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "", image, captions
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return image, "", captions
    if pa.types.is_struct(kind):
        inner = {kind.field(n).name for n in range(kind.num_fields)}
        if "bytes" in inner or "path" in inner:
            return (f"{image}.bytes" if "bytes" in inner else "", f"{image}.path" if "path" in inner else "", captions)
    raise DataError(
        f"{path}: column {image!r} has the type {kind}: give paths (string), the bytes of images (binary), or a "
        "structure of bytes and path"
    )


def _records(path: Path, columns: Columns, content: str, name: str, captions: Sequence[str]) -> Iterator[Record]:
    table, number = _opened(path), 0
    wanted = [each for each in dict.fromkeys((name, *captions, SPLIT_FIELD, columns.id)) if each]
    present = [column for column in wanted if column.partition(".")[0] in table.schema.names]
    image = (name or content).partition(".")[0]
    for part, cells in enumerate(_parts(path, present)):
        packed = content and not table.only_paths(part, content)
        for row in range(table.sizes[part]):
            entry = {column.partition(".")[0]: each[row] for column, each in zip(present, cells, strict=True)}
            label = entry[image] = entry.get(image) or ""
            try:
                if not isinstance(label, str):
                    raise DataError(f"{name!r} is {kind_of_value(label)}: write a string")
                place = TableCell(path, label or f"row {number}", part, row, content) if packed else None
                yield read_record(entry, path.parent, columns, place=place or (None if label else path.parent))
            except DataError as error:
                raise DataError(f"{path}, row {number}: {error}") from None
            number += 1


def _parts(path: Path, names: Sequence[str]) -> Iterator[list[list[Any]]]:
    """Yield the cells of some columns for each part. Raise DataError before those are made that take much memory."""
    table, left = _opened(path), max(_MOST_TEXT, _FILE_RATIO * path.stat().st_size)
    for part in range(len(table.sizes)):
        columns = [table.column(part, name) for name in names]
        size = sum(map(partial(_size, path), names, columns))
        left -= size
        if size > _MOST_TEXT or left < 0:
            among = f"{path}: columns {', '.join(names)}"
            raise DataError(f"{among} make too many or too long texts of a small file: get the file from its authors")
        yield [*map(_cells, columns)]


def _cells(values: Any) -> list[Any]:
    if _pyarrow().types.is_dictionary(values.type):  # equal texts are one text in memory
        texts, places = values.dictionary.to_pylist(), values.indices.to_pylist()
        return [None if place is None else texts[place] for place in places]
    cells: list[Any] = values.to_pylist()
    return cells


def _size(path: Path, column: str, values: Any, *, inside: bool = False) -> int:
    """Return the bytes that the values of a column take in Python, equal ones once unless they are ``inside`` lists."""
    import pyarrow.compute

    compute, types, kind = pyarrow.compute, _pyarrow().types, values.type
    if types.is_dictionary(kind):
        places = values.indices.drop_null()
        if len(places) and not 0 <= compute.min(places).as_py() <= compute.max(places).as_py() < len(values.dictionary):
            raise DataError(f"{path}: {column!r} refers to values that are not there: get the whole file again")
        whole = _size(path, column, values.dictionary)
        if not inside:
            return whole + _AGAIN * len(values)
        lengths = compute.binary_length(values.dictionary).take(places)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _VALUE * len(values) + _size(path, column, values.flatten(), inside=True)
    elif types.is_struct(kind):
        return sum(_size(path, column, each, inside=True) for each in values.flatten())
    elif types.is_primitive(kind) or types.is_null(kind):
        return _VALUE * len(values)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        lengths = compute.binary_length(values)
        check_size(f"{path}: a cell of column {column!r}", compute.max(lengths).as_py() or 0)
    else:
        raise DataError(f"{path}: column {column!r} has the type {kind}: write strings, or lists of strings")
    return _VALUE * len(values) + int(compute.sum(lengths).as_py() or 0)


class _Table:
    """A Parquet file, whose parts are its row groups, or an Arrow file, mapped into memory, with its record batches.

    ``sizes`` are the rows of each part, and ``largest_part`` the bytes of the largest row group in memory.
    """

    largest_part = 0
    _metadata: Any = None
    _read: Callable[[int, str], Any]

    def __init__(self, path: Path) -> None:
        pa, self._path = _pyarrow(), path
        if path.suffix.lower() == ".parquet":
            self._open_parquet(path)
            return
        source = pa.memory_map(str(path))
        _refuse_compressed(path, source)
        try:
            reader = pa.ipc.open_stream(source)  # the form that the library datasets writes
            self.schema, parts = reader.schema, list(reader)
        except pa.ArrowInvalid:
            file = pa.ipc.open_file(source)
            self.schema, parts = file.schema, [file.get_batch(n) for n in range(file.num_record_batches)]
        self.sizes = [int(part.num_rows) for part in parts]
        self._read = lambda part, column: _sound(parts[part].select([column.partition(".")[0]]))

    def _open_parquet(self, path: Path) -> None:
        from pyarrow.parquet import ParquetFile

        file = ParquetFile(path)
        self._metadata, self.schema = file.metadata, file.schema_arrow
        groups = [self._metadata.row_group(part) for part in range(self._metadata.num_row_groups)]
        self.sizes = [int(group.num_rows) for group in groups]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        _check_claims(path, sum(self.sizes), chunks)
        self.largest_part = max((group.total_byte_size for group in groups), default=0)
        deltas = {chunk.path_in_schema for chunk in chunks if "DELTA_BYTE_ARRAY" in chunk.encodings}
        leaves = (file.schema.column(number) for number in range(len(file.schema)))
        texts = {leaf.path for leaf in leaves if str(leaf.logical_type) == "String"} - deltas
        self._read = partial(_read_part, path, ParquetFile(path, read_dictionary=texts), texts)

    def only_paths(self, part: int, column: str) -> bool:
        """Return whether a part has no bytes in its column of images, so that its paths name files."""
        if self._metadata is None:
            values = self.column(part, column)
            return bool(values.null_count == len(values))
        group = self._metadata.row_group(part)
        chunks = (group.column(n) for n in range(group.num_columns))
        chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
        return bool(chunk.statistics is not None and chunk.statistics.null_count == chunk.num_values)

    def column(self, part: int, column: str) -> Any:
        """Return a column of a part, or a field of one."""
        outer, _, inner = column.partition(".")
        values = self._read(part, column).column(outer)
        values = values.combine_chunks() if hasattr(values, "combine_chunks") else values
        values = values.chunk(0) if hasattr(values, "num_chunks") else values
        if len(values) != self.sizes[part]:
            raise DataError(f"{self._path}: {len(values):,} cells in {self.sizes[part]:,} rows: get the file again")
        return values.field(inner) if inner else values


def _read_part(path: Path, file: Any, texts: Collection[str], part: int, column: str) -> Any:
    """Return a column of a row group. Raise DataError, while it is read, if small data make many or large cells.

    A dictionary holds equal cells once, and a delta what they share, so a batch has few rows where cells may be large.
    Those of ``texts`` stay once in memory, however many rows refer to them.
    """
    group, size, made = file.metadata.row_group(part), path.stat().st_size, 0
    chunks = [group.column(number) for number in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(f"{column}.")]
    values = max(int(chunk.num_values) for chunk in chunks)
    whole = max(int(chunk.total_uncompressed_size) for chunk in chunks)
    if values > max(_FEW_VALUES, size):
        raise DataError(f"{path}: {values:,} values in {size:,} bytes are no data: get the file from its authors")
    long = any(each.physical_type == "BYTE_ARRAY" and each.path_in_schema not in texts for each in chunks)
    rows, batches = _SMALL // max(1, whole) if long else values, []
    for batch in file.iter_batches(max(1, rows), [part], [column], use_threads=False):
        batches.append(batch)
        if (made := made + batch.nbytes) > max(_SMALL, _REPEATED * whole):
            raise DataError(
                f"{path}: {whole:,} bytes of column {column!r} make cells of more than {made:,}, unlike any captions "
                f"or images: get the file from its authors"
            )
    return _pyarrow().Table.from_batches(batches) if batches else file.read_row_group(part, [column])


def _check_claims(path: Path, rows: int, chunks: Sequence[Any]) -> None:
    """Raise DataError for a Parquet file in which a few bytes expand to gigabytes."""
    size = path.stat().st_size
    if rows > max(_FEW_VALUES, size):
        raise DataError(f"{path}: {rows:,} rows in {size:,} bytes are no data: get the file from its authors")
    for chunk in chunks:
        packed, whole = int(chunk.total_compressed_size), int(chunk.total_uncompressed_size)
        if whole > max(_SMALL, _RATIO * packed):
            raise DataError(
                f"{path}: {packed:,} bytes of column {chunk.path_in_schema!r} expand to {whole:,}, unlike any "
                f"captions or images: get the file from its authors"
            )


def _sound(batch: Any) -> Any:
    """Return a batch that was mapped from a file, whose offsets nothing has checked yet."""
    batch.validate(full=True)
    return batch


def _refuse_compressed(path: Path, source: Any) -> None:
    """Raise DataError if batches of an Arrow file are compressed, because a few bytes may expand to gigabytes.

    A message is a table of FlatBuffers (Message.fbs of Arrow). The fourth field of the batch in it says how its body is
    compressed.
    """
    pa = _pyarrow()
    source.seek(8 if source.read(6) == b"ARROW1" else 0)
    with suppress(pa.ArrowException, OSError, StopIteration, struct.error):  # opening it says what is wrong
        for message in iter(pa.ipc.MessageReader.open_stream(source)):
            table = memoryview(message.metadata)
            (header,) = struct.unpack_from("<I", table)
            batch = _field(table, header, 2)
            if message.type == "dictionary":
                batch = _field(table, batch, 1)
            if message.type in ("dictionary", "record batch") and _slot(table, batch, 3):
                raise DataError(
                    f"{path}: compressed Arrow files are not read: save it without compression, or as Parquet"
                )
    source.seek(0)


def _field(table: memoryview, start: int, number: int) -> int:
    """Return the start of the table to which a field of a FlatBuffer's table refers."""
    place = start + _slot(table, start, number)
    return place + int(struct.unpack_from("<I", table, place)[0])


def _slot(table: memoryview, start: int, number: int) -> int:
    """Return the offset of a field from the start of a FlatBuffer's table, or 0 if it is left out."""
    fields = start - int(struct.unpack_from("<i", table, start)[0])
    size = int(struct.unpack_from("<H", table, fields)[0])
    return int(struct.unpack_from("<H", table, fields + 4 + 2 * number)[0]) if 4 + 2 * number < size else 0


def _pyarrow() -> Any:
    """Return pyarrow. Raise OpenVSEError, which names the extra, if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise OpenVSEError(f"Parquet and Arrow files need pyarrow: {install('parquet')}") from error
    return pyarrow


def _opened(path: Path) -> _Table:
    """Return an open table, which is opened again if it was rewritten."""
    _pyarrow()
    return _open(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _open(path: Path, modified_ns: int) -> _Table:
    return _Table(path)


@lru_cache(maxsize=_PARTS_AT_ONCE)
def _read_column(path: Path, modified_ns: int, part: int, column: str) -> Any:
    return _open(path, modified_ns).column(part, column)


@cache
def _digests(path: Path, modified_ns: int, part: int, column: str) -> list[bytes]:
    """Return a hash of each cell of a part, b"" for an empty cell."""
    values = _open(path, modified_ns).column(part, column)
    cells = (value.as_buffer() if value.is_valid else None for value in values)
    return [b"" if cell is None else hashlib.blake2b(cell).digest() for cell in cells]
