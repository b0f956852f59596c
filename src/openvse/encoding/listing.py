"""The records of an encoding: the images of a folder, or the images or sentences that a file lists, each with an id."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openvse.datasets.rows import CAPTION_FIELDS, IMAGE_FIELDS, first_field
from openvse.datasets.table import TABLE_SUFFIXES, read_entries
from openvse.errors import DataError, TextError
from openvse.files import read_lines, whole_characters
from openvse.media.listing import LeftOut, kind_left_out, list_media
from openvse.media.matching import find_files
from openvse.media.names import escaped, is_image, is_video_name

Kind = Literal["images", "texts"]

_FIELDS = {"images": IMAGE_FIELDS, "texts": (*CAPTION_FIELDS, "sentence")}
_LISTS = " ".join((".txt", *TABLE_SUFFIXES))


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

    def add_image(self, item: str, path: Path, written: str = "") -> None:
        """Add an image, or the reason why it cannot be used; ``written`` is how messages write its path."""
        try:
            status = path.stat()
        except OSError as error:
            reason = f"{escaped(written or path)}: {error.strerror or 'it cannot be read'}"
            self.failed.append((item, reason))
        else:
            state = f"{status.st_mtime_ns} {status.st_size}"
            self.records.append(EncodingRecord(item, path.absolute(), state))


def list_records(data: str | Path, *, kind: Kind | None = None, videos: bool = False) -> RecordList:
    """List the records of an encoding.

    Args:
        data: a folder of images, at any depth; or a file that lists images or sentences: ``.txt`` with one a line, or a
            table as ``openvse data table`` describes, perhaps with a column ``id``. Paths are relative to the folder of
            the file. Without ids, the path or the number of the line is the id.
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
        listing.add_image(path.relative_to(folder).as_posix(), path)
    listing.records.sort(key=lambda record: os.fsencode(record.id))
    return listing


def _of_file(file: Path, kind: Kind | None, videos: bool) -> RecordList:
    kind, rows = _lines(file, kind) if file.suffix.lower() == ".txt" else _rows(file, kind)
    listing = RecordList(kind, [])
    if kind == "texts":
        for number, item, value in rows:
            if sentence := whole_characters(" ".join(value.split())):
                listing.records.append(EncodingRecord(item or str(number), sentence))
            else:
                listing.failed.append((item or str(number), f"line {number} has no sentence"))
        return listing
    files = find_files(file.parent / name for _, _, name in rows if name.strip())
    for number, item, value in rows:
        path = file.parent / value
        if not value.strip():
            listing.failed.append((item or str(number), f"line {number} names no image"))
        elif left := kind_left_out(value, videos=videos):
            listing.left_out.files.setdefault(left, []).append(Path(value))
        else:
            listing.add_image(item or value, files.files.get(path, path), files.without_file(path))
    return listing


_Rows = list[tuple[int, str, str]]  # the number of the line, the id or "", and the path or sentence


def _lines(file: Path, kind: Kind | None) -> tuple[Kind, _Rows]:
    """Return what a text file lists, which its first line shows, and its lines that are not empty."""
    try:
        lines = read_lines(file)
    except (OSError, TextError) as error:
        raise DataError(f"{escaped(file)} cannot be read ({error})") from error
    rows = [(number, "", line) for number, line in enumerate(lines, start=1) if line]
    first = Path(rows[0][2].strip()).name if rows else ""
    return kind or ("images" if is_image(first) or is_video_name(first) else "texts"), rows


def _rows(file: Path, kind: Kind | None) -> tuple[Kind, _Rows]:
    """Return what a table lists, which the names of its columns show, and its rows."""
    names, entries = read_entries(file)
    known = {each: first_field(names, fields) for each, fields in _FIELDS.items()}
    if kind is None and all(known.values()):
        raise DataError(
            f"{escaped(file)} has columns of images and of sentences ({known['images']}, {known['texts']}): "
            f"choose with --kind images or --kind texts"
        )
    chosen: Kind = kind or ("images" if known["images"] else "texts")
    column = known[chosen]
    if column is None:
        allowed, has = ", ".join(_FIELDS[chosen]), ", ".join(map(escaped, names)) or "none"
        raise DataError(f"{escaped(file)} has no column of {chosen} (it has {has}): call it one of {allowed}")
    wanted = [column, *(["id"] if "id" in names else [])]
    return chosen, [
        (number, whole_characters(_cell(entry.get("id"))), _cell(entry.get(column)))
        for number, entry in entries(wanted)
    ]


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _check_unique(data: Path, records: Iterable[EncodingRecord]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise DataError(f"{escaped(data)} gives the id {escaped(record.id)} twice: give each its own id")
        seen.add(record.id)
