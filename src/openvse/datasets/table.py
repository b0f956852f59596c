"""Captions in one file: a table (CSV, TSV, Parquet) or lines of JSON, with the same column names or keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.layout import named_splits, with_folder_splits
from openvse.datasets.parquet import ARROW_SUFFIXES, column_names, identified, read_arrow, read_columns
from openvse.datasets.rows import (
    COMMENTS,
    SPLIT_FIELD,
    USUAL,
    Columns,
    field_names,
    numbered_objects,
    read_record,
    read_rows,
)
from openvse.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", *ARROW_SUFFIXES)
"""The suffixes of files of captions."""


def open_table(root: Path, *, require_images: bool = True, columns: Columns = USUAL) -> Corpus:
    """Open one file of captions.

    It is a .csv or .tsv file, a .parquet file, or .jsonl with an object per line. The columns or keys are
    ``file_name``, ``image``, ``path``, ``video``, ``filepath``, ``filename``, ``file``, ``image_path`` or
    ``image_name`` (relative to the file, and in Parquet also the images themselves), ``captions``, ``caption``,
    ``text``, ``description``, ``title``, ``sentences``, ``sentences_raw`` or ``comment``, or all of ``caption_0``,
    ``caption_1``, ..., and ``split`` if there are splits. Rows of one image are joined. Other columns are named after
    the file: ``pets.csv#image=picture,caption=alt,caption=title,id=number``.
    """
    records = with_folder_splits(list(read_file(root, columns)), root.parent)
    return build_corpus(root.stem, records, require_images=require_images)


def read_file(file: Path, columns: Columns = USUAL) -> Iterator[Record]:
    """Yield a record for each row of captions. Raise DataError if the file cannot be read."""
    if columns.named and (lacking := _lacking(file, columns)):  # the first line of JSON stands for the others
        raise DataError(f"{file}: {lacking}")
    match file.suffix.lower():
        case ".csv" | ".tsv":
            return read_table(file, columns)
        case ".jsonl":
            read = partial(read_record, folder=file.parent, columns=columns)
            return (record for _, record in numbered_objects(file, read))
        case suffix if suffix in ARROW_SUFFIXES:
            records = list(read_arrow(file, columns))
            return iter(identified(records, file.parent, by_id=bool(columns.id))[0])
        case _:
            raise DataError(f"{file}: not a file of captions: give one of {', '.join(TABLE_SUFFIXES)}")


def read_table(path: Path, columns: Columns = USUAL) -> Iterator[Record]:
    """Yield a record for each row of a table. Raise DataError if a column is missing or a cell cannot be used."""
    columns, names = columns.in_text(), field_names(path)
    if names and (lacking := columns.lacking(names)):
        raise DataError(f"{path}: {lacking}")
    image = columns.image_in(names) or ""
    wanted = list(dict.fromkeys(filter(None, (image, columns.id, *columns.captions_in(names)))))
    for line, cells in read_rows(path, [[name] for name in wanted], (SPLIT_FIELD,), unread=COMMENTS):
        try:
            yield read_record(dict(zip((*wanted, SPLIT_FIELD), cells, strict=True)), path.parent, columns)
        except DataError as error:
            raise DataError(f"{path}, line {line}: {error}") from None


def names_in(file: Path) -> list[str]:
    """Return the columns of a table, or the keys of its first line. Raise DataError if the file is neither."""
    if file.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(f"{file}: not a readable list: give one of {', '.join(TABLE_SUFFIXES)}")
    return column_names(file) if file.suffix.lower() in ARROW_SUFFIXES else field_names(file)


def read_entries(file: Path, wanted: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the number and some cells of each row of a table, by the names of their columns."""
    match file.suffix.lower():
        case ".csv" | ".tsv":
            rows = read_rows(file, [[name] for name in wanted], unread=field_names(file))
            return ((line, dict(zip(wanted, cells, strict=True))) for line, cells in rows)
        case ".jsonl":
            return numbered_objects(file, _object)
        case _:
            return enumerate(read_columns(file, wanted), start=1)


def _object(entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise DataError("it is no JSON object: give one a line")
    return entry


def lone_tables(root: Path, columns: Columns = USUAL) -> list[Path]:
    """Return the only file of captions in a folder, or those named after splits (train.csv, test.csv), or none.

    A file counts if it has a column for images and one for captions.
    """
    if not root.is_dir():
        return []
    files = sorted(path for path in root.iterdir() if path.suffix.lower() in TABLE_SUFFIXES)
    tables = [
        path
        for path in files
        if not path.name.startswith(".") and path.is_file() and not _lacking(path, columns)
    ]
    shards = all(path.suffix.lower() in ARROW_SUFFIXES for path in tables)  # these have a layout of their own
    if len(tables) > 1 and not shards and not all(named_splits(tables, root).values()):
        raise DataError(
            f"{root}: {len(tables)} files of captions there ({', '.join(path.name for path in tables[:3])}"
            f"{', ...' if len(tables) > 3 else ''}): name one of them, or rename them to train, validation and test"
        )
    return tables


def describe_other_tables(root: Path, columns: Columns = USUAL) -> str:
    """Return the missing columns of the first table of a folder without a file of captions, or "" without a table."""
    for file in sorted(root.iterdir()) if root.is_dir() else ():
        if file.suffix.lower() in TABLE_SUFFIXES and file.is_file() and names_in(file):
            return f"{file.name} has {_lacking(file, columns)}"
    return ""


def _lacking(file: Path, columns: Columns) -> str:
    text = file.suffix.lower() in (".csv", ".tsv")
    return (columns.in_text() if text else columns).lacking(names_in(file))
