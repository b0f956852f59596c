"""The records of an encoding: the images of a folder, or the images or sentences that a file lists, each with an id."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openvse.encoding.output import import_parquet
from openvse.errors import DataError
from openvse.files import text_lines, whole_characters
from openvse.media.listing import LeftOut, kind_left_out, list_media
from openvse.media.matching import find_files
from openvse.media.names import escaped, is_image, is_video_name

Kind = Literal["images", "texts"]

COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "images": ("path", "image", "file_name", "filepath", "image_path", "video", "filename", "file"),
    "texts": ("text", "caption", "sentence"),
}
"""The names of columns that are recognised, by what they hold."""

_LISTS = ".txt .csv .tsv .jsonl .parquet"


@dataclass(frozen=True)
class EncodingRecord:
    """An image or sentence to be encoded.

    Attributes:
        id: its name in the output, unique.
        source: the file of the image, or the sentence.
        state: time and size of the file; "" for a sentence.
    """

    id: str
    source: Path | str
    state: str = ""


@dataclass(frozen=True)
class RecordList:
    """The records of an encoding.

    Attributes:
        kind: images or texts.
        records: all records, in the order of the output: that of the ids for a folder, of the lines for a file.
        failed: id and reason of the images that are not there, and of empty sentences.
        left_out: files of the folder that look like images and are not read, by kind.
    """

    kind: Kind
    records: list[EncodingRecord]
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


def list_records(data: str | Path, *, kind: Kind | None = None, videos: bool = False) -> RecordList:
    """List the records of an encoding.

    Args:
        data: a folder of images, at any depth; or a file that lists images or sentences: ``.txt`` with one a line, or
            ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` with a column that ``COLUMNS`` names, and perhaps ``id``.
            Paths are relative to the folder of the file. Without ids, the path or the number of the line is the id.
        kind: what a file lists; None recognises it by the names of the columns, or by the first line of a ``.txt``.
        videos: whether clips are read, too.

    Raises:
        DataError: there is nothing to encode, the file cannot be understood, or two records have one id.
    """
    path = Path(data)
    if path.is_dir():
        if kind == "texts":
            raise DataError(f"{escaped(path)} is a folder: sentences come from a file ({_LISTS})")
        listing = _of_folder(path, videos)
    elif path.is_file():
        listing = _of_file(path, kind, videos)
    else:
        raise DataError(
            f"{escaped(path)}: there is no such file or folder; give a folder of images or a list"
        )
    if not listing.records:
        what = "image" if listing.kind == "images" else "sentence"
        more = f"; {listing.left_out.describe()}" if listing.left_out else ""
        more += f"; the first of {len(listing.failed)}: {listing.failed[0][1]}" if listing.failed else ""
        raise DataError(f"there is no {what} to encode in {escaped(path)}{more}")
    _check_unique(path, listing.records)
    return listing


def _of_folder(folder: Path, videos: bool) -> RecordList:
    media = list_media(folder, videos=videos)
    listing = RecordList("images", [], left_out=media.left_out)
    listing.failed.extend((str(path), "the folder cannot be listed") for path in media.unreadable)
    for path in media.paths:
        _add_image(listing, path.relative_to(folder).as_posix(), path)
    listing.records.sort(key=lambda record: os.fsencode(record.id))
    return listing


def _add_image(listing: RecordList, item: str, path: Path, written: str = "") -> None:
    try:
        status = path.stat()
    except OSError as error:
        listing.failed.append((item, f"{escaped(written or path)}: {error.strerror or 'it cannot be read'}"))
        return
    listing.records.append(EncodingRecord(item, path.absolute(), f"{status.st_mtime_ns} {status.st_size}"))


def _of_file(file: Path, kind: Kind | None, videos: bool) -> RecordList:
    rows = list(_rows(file))
    if not rows:
        return RecordList(kind or "texts", [])
    kind, column = _what(file, rows, kind)
    listing = RecordList(kind, [])
    named = (row.get(column) for _, row in rows if kind == "images")
    files = find_files(file.parent / name for name in named if isinstance(name, str) and name.strip())
    for number, row in rows:
        cell = row.get(column)
        value = str(cell) if isinstance(cell, str | int | float) else ""
        item = whole_characters(str(row["id"])) if row.get("id") not in (None, "") else ""
        if kind == "texts":
            sentence = whole_characters(" ".join(value.split()))
            if sentence:
                listing.records.append(EncodingRecord(item or str(number), sentence))
            else:
                listing.failed.append((item or str(number), f"line {number} has no sentence"))
        elif not value.strip():
            listing.failed.append((item or str(number), f"line {number} names no image"))
        elif left := kind_left_out(value, videos=videos):
            listing.left_out.files.setdefault(left, []).append(Path(value))
        else:
            path = file.parent / value
            _add_image(listing, item or value, files.files.get(path, path), files.without_file(path))
    return listing


def _what(file: Path, rows: list[tuple[int, dict[str, Any]]], kind: Kind | None) -> tuple[Kind, str]:
    """Return what a file lists, and the column that holds it."""
    first = next((row for _, row in rows if any(row.values())), {})
    if "" in first:  # lines without columns
        line = str(first[""]).strip()
        named = is_image(Path(line).name) or is_video_name(Path(line).name)
        return kind or ("images" if named else "texts"), ""
    columns = {each: next((name for name in names if name in first), None) for each, names in COLUMNS.items()}
    if kind is None:
        kinds = [each for each, column in columns.items() if column is not None]
        if len(kinds) == 2:
            raise DataError(
                f"{escaped(file)} has columns of images and of sentences ({columns['images']}, {columns['texts']}): "
                f"choose with --kind images or --kind texts"
            )
        kind = kinds[0] if kinds else "texts"
    column = columns[kind]
    if column is None:
        known = ", ".join(COLUMNS[kind])
        has = ", ".join(first) or "none"
        raise DataError(f"{escaped(file)} has no column of {kind} (it has {has}): call it one of {known}")
    return kind, column


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the columns of each row; the only column of a text file is called ""."""
    suffix = file.suffix.lower()
    try:
        if suffix == ".parquet":
            yield from enumerate(_parquet_rows(file), start=1)
            return
        with file.open("rb") as opened:
            lines = text_lines(opened, escaped(file))
            if suffix == ".txt":
                yield from ((number, {"": line}) for number, line in enumerate(lines, start=1) if line)
            elif suffix in (".csv", ".tsv"):
                reader = csv.DictReader(
                    (f"{line}\n" for line in lines), delimiter="\t" if suffix == ".tsv" else ","
                )
                for row in reader:
                    yield reader.line_num, {str(key).strip().lower(): value for key, value in row.items()}
            elif suffix in (".jsonl", ".ndjson"):
                yield from _json_rows(file, lines)
            else:
                raise DataError(f"{escaped(file)} is no list that we read: give a folder, or {_LISTS}")
    except (OSError, csv.Error) as error:
        raise DataError(f"{escaped(file)} cannot be read ({error})") from error


def _json_rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{escaped(file)}, line {number}: it is no JSON object; give one a line")
        yield number, row


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    pa, parquet = import_parquet()
    try:
        table = parquet.ParquetFile(file)
        wanted = [name for name in table.schema_arrow.names if name in ("id", *sum(COLUMNS.values(), ()))]
        for batch in table.iter_batches(columns=wanted):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise DataError(f"{escaped(file)} cannot be read as Parquet ({error})") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{escaped(file)}: the text {error.object[:40]!r} is not UTF-8; write it in UTF-8"
        ) from error


def _check_unique(data: Path, records: Iterable[EncodingRecord]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise DataError(f"{escaped(data)} gives the id {escaped(record.id)} twice: give each its own id")
        seen.add(record.id)
