"""Rows of captions and questions in text: the names of columns and keys, and readers of tables and lines of JSON."""

from __future__ import annotations

import csv
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

from openvse.corpus.corpus import Record
from openvse.corpus.splits import SPLITS, canonical_split, is_split
from openvse.errors import DataError, TextError, nearest
from openvse.files import csv_rows, decoded_cell, parse_json, read_json, read_text, split_lines
from openvse.media.listing import ImageFile
from openvse.media.matching import real_place
from openvse.media.names import escaped

_MAX_PUBLISHED = 1 << 31
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


def first_file(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a file."""
    return next((root / name for name in names if (root / name).is_file()), None)


@contextmanager
def reading_json(path: Path, what: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Iterator[Any]:
    """Parse a published JSON file, and report any fault of its content in one line."""
    try:
        yield read_json(path, hook=hook, most=_MAX_PUBLISHED)
    except DataError as error:
        raise DataError(f"{path}: not in {what}: {error}: download it again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not in {what} ({error!r}): download it again") from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error


def split_of_folder(path: PurePath) -> str:
    """Return the first folder of a relative path that is the name of a split, or ""."""
    return next((folder for folder in path.parts[:-1] if is_split(folder)), "")


def named_splits(files: Sequence[Path], root: Path) -> dict[Path, str]:
    """Return files with the split in the name of each, if all have one and there are several, otherwise with "".

    The split is the name of a folder, or otherwise the first word of the file name that is one. Folders above the root
    do not count.
    """
    below = [file.relative_to(root) for file in files]
    splits = [split_of_folder(path) or next(filter(is_split, _WORD.findall(path.stem)), "") for path in below]
    return dict(zip(files, splits if _several(splits) else [""] * len(files), strict=True))


def with_folder_splits(records: Sequence[Record], root: Path) -> list[Record]:
    """Take the splits from the folders of the images if no record has one and all images are in such folders.

    Hugging Face's imagefolder reads a metadata file above the folders train, validation and test in this way.
    Folders above the root do not count.
    """
    folder_splits = [split_of_folder(_below(record, root)) for record in records]
    splits = [split for split, record in zip(folder_splits, records, strict=True) if record.captions]
    if any(record.split for record in records) or not _several(splits):
        return list(records)
    return [replace(record, split=split) for split, record in zip(folder_splits, records, strict=True)]


def _below(record: Record, root: Path) -> PurePath:
    if isinstance(record.path, Path) and record.path.is_relative_to(root):
        return record.path.relative_to(root)
    return PurePath(record.image_id)


def _several(splits: Sequence[str]) -> bool:
    return all(splits) and len({canonical_split(split) for split in splits if split}) > 1


def refuse_outside(root: Path, images: Iterable[tuple[str, object]]) -> None:
    """Refuse images outside the folder of a data set or a list, as pairs of an id and a path.

    The metadata decide which files are read and turned into features and pages. So a data set from elsewhere could read
    any file of this machine.
    """
    folder = root.parent if root.is_file() else root
    base = _base(folder.resolve())
    real = lru_cache(maxsize=None)(real_place)  # links of folders are resolved once for all their images
    for name, image in images:
        if not isinstance(image, Path):
            continue
        place = Path(real_place(image)) if os.path.islink(image) else Path(real(image.parent), image.name)  # noqa: PTH114
        if not place.is_relative_to(base):
            raise DataError(
                f"{escaped(folder)}: image {escaped(name)!r} is outside the folder, at {escaped(place)}: move it "
                "inside, or allow it with --allow-outside (in a recipe data.allow_outside=true)"
            )


def refuse_outside_text(root: Path, file: Path) -> None:
    """Refuse a file of captions inside a data set that links to a place outside, because it could show any text."""
    place = file.resolve()
    if not place.is_relative_to(_base(root.resolve())):
        raise DataError(f"{escaped(root)}: {escaped(file)} is outside the folder, at {escaped(place)}: copy it inside")


def _base(folder: Path) -> Path:
    """Return the folder in which images may be. The hub's cache keeps the files of snapshots next to the snapshots."""
    cache = folder.parent.parent
    return cache if folder.parent.name == "snapshots" and (cache / "blobs").is_dir() else folder


_PATHS = ("file_name", "image", "path", "video", "filepath", "filename", "file")
IMAGE_FIELDS = (*_PATHS, "image_path", "image_name")
"""The possible names of the field with the image or clip. If several are present, the first counts."""

CAPTION_FIELDS = ("captions", "caption", "text", "description", "title", "sentences", "sentences_raw", "comment")
"""The possible names of the field with one or more captions. If several are present, the first counts."""

_NUMBERED = re.compile(r"captions?_?[0-9]+")

SPLIT_FIELD = "split"

COMMENTS = ["image_name", "comment_number", "comment"]
"""The columns of Flickr30k's ``results.csv``, as Kaggle has it."""

_logger = logging.getLogger(__name__)

MAX_CAPTION_BYTES = 1 << 20
"""The largest size of the captions of one image."""

_MOST_FIELDS, _SHOWN = 1000, 1000


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns or keys of images, captions and identifiers that a user named.

    An image of "" and no captions have the usual names (``IMAGE_FIELDS``, ``caption_fields``). If the identifier is "",
    the paths of images are their identifiers.
    """

    image: str = ""
    captions: tuple[str, ...] = ()
    id: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the user named."""
        return tuple(filter(None, (self.image, *self.captions, self.id)))

    def in_text(self) -> Columns:
        """Return the columns as tables in text name them: in lower case, without spaces around them."""
        captions = tuple(name.strip().lower() for name in self.captions)
        return Columns(self.image.strip().lower(), captions, self.id.strip().lower())

    def image_in(self, fields: Sequence[str]) -> str | None:
        """Return the field of the image, or None if there is none."""
        return first_field(fields, (self.image,) if self.image else IMAGE_FIELDS)

    def captions_in(self, fields: Iterable[str]) -> list[str]:
        """Return the fields of the captions."""
        known = list(fields)
        return [name for name in self.captions if name in known] if self.captions else caption_fields(known)

    def lacking(self, fields: Sequence[str]) -> str:
        """Return the missing column and the present fields, or "" if none is missing."""
        present = f"(found: {', '.join(map(escaped, fields)) or 'none'})"
        for name in self.named:
            if name not in fields:
                return f"no column {name!r} {present}{nearest(name, fields)}"
        image = [] if self.image_in(fields) else [" or ".join(IMAGE_FIELDS)]
        kinds = image if self.captions_in(fields) else [*image, " or ".join(CAPTION_FIELDS)]
        advice = "rename the columns, or name them: DATA#image=COLUMN,caption=COLUMN"
        return f"no column {', and no column '.join(kinds)} {present}: {advice}" if kinds else ""


USUAL = Columns()
"""The columns by their usual names."""


def read_record(entry: Any, folder: Path, columns: Columns = USUAL, *, place: ImageFile | None = None) -> Record:
    """Read an object such as ``{"file_name": "a.jpg", "captions": ["a dog", "it runs"], "split": "train"}``.

    Every row of captions becomes a record in this way: of text, JSON, Parquet, Arrow and of an archive. With a
    ``place``, where the row itself holds the image, the entry may name none.
    """
    if not isinstance(entry, Mapping):
        raise DataError(_advice(columns, kind_of_value(entry)))
    key = columns.image_in(list(entry))
    name = entry[key] if key is not None else ""
    if key is None and place is None:
        raise DataError(_advice(columns, f"keys {', '.join(map(str, entry)) or 'none'}"))
    if not isinstance(name, str) or not (name.strip() or place is not None):
        raise DataError(f"{key!r} is {kind_of_value(name)}: write the path of an image, a string")
    image_id = _id(entry, columns.id) if columns.id else name
    return Record(image_id, place or folder / name, captions_of(entry, columns.captions_in(entry)), read_split(entry))


def _advice(columns: Columns, given: str) -> str:
    return (
        'write {"file_name": "a.jpg", "captions": ["a sentence", "another"]}; '
        f"the image may also be called {columns.image or ', '.join(IMAGE_FIELDS[1:])} (found: {given})"
    )


def _id(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if value == "" or isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{key!r} is {kind_of_value(value)}: write an identifier, a string or a whole number")
    return str(value)


def captions_of(entry: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the captions of an object under some keys. Of several, some may be empty."""
    captions = [caption for key in keys for caption in captions_in(key, entry.get(key))]
    check_size("its captions", sum(map(len, captions)))
    return [*filter(None, captions)] if len(keys) > 1 else captions


def caption_fields(fields: Iterable[str]) -> list[str]:
    """Return the fields of captions: all of caption_0, caption_1, ... if they are numbered, otherwise the first."""
    known = list(fields)
    first, numbered = first_field(known, CAPTION_FIELDS), [name for name in known if _NUMBERED.fullmatch(name)]
    if len(numbered) > _MOST_FIELDS:
        raise DataError(f"{len(numbered):,} fields of captions: give at most {_MOST_FIELDS:,}, or a list in one")
    return numbered or ([] if first is None else [first])


def captions_in(key: str, value: Any) -> list[str]:
    """Return the captions in a value, a text or a list, which a text may also encode (see ``decoded_cell``)."""
    if value is None:
        return []
    value = decoded_cell(value) if isinstance(value, str) else value
    if not isinstance(value, str | list) and not (isinstance(value, Mapping) and "raw" in value):
        raise DataError(f"{key!r} is {kind_of_value(value)}: write a string or a list of strings")
    captions = []
    for number, part in enumerate(value if isinstance(value, list) else [value], start=1):
        each = decoded_cell(part) if isinstance(part, str) and part is not value else part
        caption = each.get("raw") if isinstance(each, Mapping) else each  # Karpathy's objects have tokens too
        if not isinstance(caption, str):
            raise DataError(f"{key!r} holds {kind_of_value(each)} at place {number}: write only strings")
        captions.append(caption)
    return captions


def read_split(entry: Mapping[str, Any]) -> str:
    """Return the split of an object, or "". Raise DataError if it is not the name of a split."""
    split = entry.get(SPLIT_FIELD)
    if split is None or split == "":
        return ""
    if not isinstance(split, str):
        raise DataError(f"{SPLIT_FIELD!r} is {kind_of_value(split)}: write one of {', '.join(SPLITS)}")
    if not is_split(split):
        raise DataError(f"{SPLIT_FIELD!r} is {kind_of_value(split)}: use one of {', '.join(SPLITS)} (or dev, val)")
    return split


def first_field(fields: Iterable[str], allowed: Sequence[str]) -> str | None:
    """Return the first allowed name that is among the fields, or None."""
    known = set(fields)
    return next((name for name in allowed if name in known), None)


def kind_of_value(value: Any) -> str:
    """Return the kind of a value for a message, with the value if it is short."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"the string {escaped(value)!r}" if len(value) < 40 else "a string"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case _:
            return "an object" if isinstance(value, Mapping) else type(value).__name__


ObjectT = TypeVar("ObjectT")


def table_lines(path: Path) -> list[str]:
    """Return the lines of a text file (see ``files.split_lines``). Raise DataError if it cannot be read."""
    try:
        text = read_text(path)
    except TextError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}): check the path") from error
    return split_lines(text) if text else []


def check_size(where: str | Path, size: int) -> None:
    """Raise DataError if the captions of an image, at a place, have so many bytes that they cannot be captions."""
    if size > MAX_CAPTION_BYTES:
        raise DataError(f"{where}: {size:,} bytes are not captions: give at most {MAX_CAPTION_BYTES:,}")


def read_tabbed(path: Path, key: str, *, counts: str = "") -> Iterator[tuple[str, str]]:
    """Yield the two columns of each line, a key and a sentence, which a tab separates, without blank lines.

    ``key`` names the first column in messages. ``counts`` names the meaning of a whole number in a third column, which
    is not read, or "" if there is no such column.
    """
    for number, line in enumerate(table_lines(path), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        while len(cells) > 2 and not cells[-1]:
            cells.pop()
        if len(cells) == 2 or (len(cells) == 3 and counts and cells[2].lstrip("-").isdigit()):
            yield cells[0], cells[1]
        elif len(cells) > 1:
            known = f"{key} and the sentence" + (f", and perhaps {counts}" if counts else "")
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns between tabs, but only {known} are known: remove the "
                "others, or the tab in the sentence"
            )
        elif line.strip():
            raise DataError(f"{path}, line {number}: write {key}, a tab and the sentence")


def numbered_objects(file: Path, read: Callable[[Any], ObjectT]) -> Iterator[tuple[int, ObjectT]]:
    """Yield the number of each line that is not empty, and the result of ``read`` for its JSON (see ``parse_json``)."""
    for number, line in enumerate(table_lines(file), start=1):
        if not line.strip():
            continue
        try:
            entry = read(parse_json(line))
        except DataError as error:
            raise DataError(f"{file}, line {number}: {error}") from None
        yield number, entry


def read_rows(
    path: Path, columns: Sequence[Sequence[str]], optional: Sequence[str] = (), unread: Collection[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a table that is not blank: its line number, and the cells of the requested columns.

    The first line names the columns, between which is a comma, semicolon, tab or "|". A column may have several names.
    The cells of an optional one are "" if it is missing. A warning names other columns, except for ``unread``, which
    are not needed.
    """
    lines = table_lines(path)
    if not lines:
        raise DataError(f"{path}: the file is empty: write a first line that names the columns")
    reader, start = csv_rows(lines), 1
    try:
        header = [name.strip().lower() for name in next(reader)]
        at = {name: place for place, name in reversed([*enumerate(header)])}
        places = [_column(path, at, names) for names in columns] + [at.get(name, len(header)) for name in optional]
        read = {*places}
        others = [name for place, name in enumerate(header) if place not in read and name and name not in unread]
        if others:
            _logger.warning("%s: these columns are not read: %s", path, ", ".join(map(escaped, others))[:_SHOWN])
        start = reader.line_num + 1  # a quoted cell may span several lines
        for row in reader:
            if any(row):
                cells = [*_mended(path, start, header, row), ""]  # a missing column reads the last cell
                if len(cells) != len(header) + 1:
                    raise csv.Error(f"{len(row)} columns where the header has {len(header)}")
                yield start, [cells[place].strip() for place in places]
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: {error}: put a cell that contains a delimiter or a quotation mark "
            "between quotation marks, and double those inside it"
        ) from error


def _mended(path: Path, line: int, header: Sequence[str], row: list[str]) -> list[str]:
    """Return a row. If the number of a comment has no separator after it, the row is read as if it had one.

    A row of Kaggle's ``results.csv`` is ``2199200615.jpg| 4   A dog runs across the grass .``.
    """
    numbered = re.fullmatch(r"\s*([0-9]+)\s+(\S.*)", row[1]) if len(row) > 1 else None
    if not numbered or any(row[2:]) or [*header] != COMMENTS:
        return row
    _logger.warning("%s, line %d: no separator after %s; the rest is its comment", path, line, numbered[1])
    return [row[0], *numbered.groups()]


def field_names(file: Path) -> list[str]:
    """Return the keys of the first object of a ``.jsonl`` file, or the columns of a table in lower case.

    There are none if the file is empty, or its first line is neither an object nor a header.
    """
    lines = table_lines(file)
    try:
        if file.suffix.lower() != ".jsonl":
            return [name.strip().lower() for name in next(csv_rows(lines), [])]
        entry = parse_json(next(filter(str.strip, lines), "{}"))
    except (csv.Error, DataError):
        return []
    return list(entry) if isinstance(entry, dict) else []


def _column(path: Path, header: Mapping[str, int], allowed: Sequence[str]) -> int:
    for name in allowed:
        if name in header:
            return header[name]
    raise DataError(f"{path}: no column {' or '.join(allowed)} (found: {', '.join(header)}): rename the column")
