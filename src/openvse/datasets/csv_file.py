"""Captions in a table: one row per caption, with comma, semicolon or tab between the columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import SPLITS, is_split
from openvse.datasets.fields import CAPTION_FIELDS, IMAGE_FIELDS, SPLIT_FIELD
from openvse.errors import DataError

ObjectT = TypeVar("ObjectT")
_DELIMITERS = (",", ";", "\t")


def open_csv(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a table of captions.

    The header names the columns: ``file_name``, ``image``, ``path`` or ``video`` (relative to the folder of the
    table), ``captions``, ``caption``, ``text`` or ``description``, and ``split`` if there are splits. Rows of one
    image are joined.

    Args:
        root: the file (.csv or .tsv).
        require_images: see ``build_corpus``.

    Raises:
        DataError: the file cannot be read, a column is missing, or see ``build_corpus``.
    """
    return build_corpus(root.stem, read_table(root), require_images=require_images)


def read_table(path: Path) -> Iterator[Record]:
    """Yield a record for each image of a table, in the order of their first rows."""
    captions: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    columns = (IMAGE_FIELDS, CAPTION_FIELDS)
    for line, (name, caption, split) in read_rows(path, columns, (SPLIT_FIELD,)):
        if split and not is_split(split):
            raise DataError(
                f"{path}, line {line}: split {split!r}; use one of {', '.join(SPLITS)} (or dev, val)"
            )
        captions.setdefault(name, []).append(caption)
        if splits.setdefault(name, split) != split:
            raise DataError(
                f"{path}, line {line}: image {name!r} is in split {split!r} and in {splits[name]!r}; "
                "give all rows of an image one split"
            )
    for name, texts in captions.items():
        yield Record(name, path.parent / name, texts, splits[name])


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, with or without a byte-order mark; raise DataError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}); check the path") from error
    # splitlines would also cut at exotic separators that JSON strings may hold.
    return text.split("\n") if text else []


def read_objects(file: Path, read: Callable[[Any], ObjectT]) -> Iterator[ObjectT]:
    """Yield what ``read`` makes of the JSON on each line of a file; empty lines are skipped.

    Raises:
        DataError: a line is not JSON, or ``read`` refuses it; file and line are named.
    """
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        try:
            entry = read(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{file}, line {number}: not JSON ({error.msg}); write one object a line"
            ) from error
        except DataError as error:
            raise DataError(f"{file}, line {number}: {error}") from None
        yield entry


def read_rows(
    path: Path, columns: Sequence[Sequence[str]], optional: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a table that is not blank: its line number, and the cells of the requested columns.

    Args:
        path: a UTF-8 file with comma, semicolon or tab between the columns; its first line names them.
        columns: the possible names of each required column.
        optional: columns that may be missing; their cells are then "".

    Raises:
        DataError: the file cannot be read, a column is missing, or a row is malformed (with its line).
    """
    lines = read_lines(path)
    if not lines:
        raise DataError(f"{path}: the file is empty; its first line must name the columns")
    reader = _reader(lines)
    header = [name.strip().lower() for name in next(reader)]
    places = [_column(path, header, names) for names in columns]
    places += [header.index(name) if name in header else len(header) for name in optional]
    start = reader.line_num + 1  # a quoted cell may span several lines
    try:
        for row in reader:
            if any(row):
                if len(row) != len(header):
                    raise csv.Error(f"{len(row)} columns where the header has {len(header)}")
                cells = [*row, ""]  # a missing column reads the last cell
                yield start, [cells[place].strip() for place in places]
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: {error}; put a cell that contains a delimiter or a quotation mark "
            "between quotation marks, and double those inside it"
        ) from error


def header_of(path: Path) -> list[str]:
    """Return the names of a table's columns in lower case; none if it is empty or not a table."""
    try:
        return [name.strip().lower() for name in next(_reader(read_lines(path)), [])]
    except csv.Error:
        return []


def _reader(lines: Sequence[str]) -> Any:
    delimiter = max(_DELIMITERS, key=lines[0].count) if lines else ","
    return csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)


def _column(path: Path, header: list[str], allowed: Sequence[str]) -> int:
    for name in allowed:
        if name in header:
            return header.index(name)
    raise DataError(
        f"{path}: no column {' or '.join(allowed)} (found: {', '.join(header)}); rename the column"
    )
