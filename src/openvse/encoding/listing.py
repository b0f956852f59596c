"""The records of an encoding: the images of a folder, or the images or sentences that a file lists, each with an id."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from openvse.datasets.folder import TABLE_SUFFIXES, names_in, read_entries
from openvse.datasets.layout import refuse_outside
from openvse.datasets.registry import columns_of, open_corpus
from openvse.datasets.rows import CAPTION_FIELDS, IMAGE_FIELDS, Columns, captions_of
from openvse.errors import DataError, TextError
from openvse.evaluation.bank import drawn_for_bank
from openvse.files import read_lines, whole_characters
from openvse.indexing.manifest import Item
from openvse.indexing.scanning import Candidate
from openvse.media.listing import LeftOut, each_once, kind_left_out, list_media
from openvse.media.matching import find_files
from openvse.media.names import escaped, is_image, is_video_name
from openvse.scoring.hubs import MOST_TEXTS

RecordKind = Literal["images", "texts"]


@dataclass(frozen=True)
class RecordList:
    """The records of an encoding, ordered by id for a folder and by line for a file.

    ``failed`` has id and reason of missing images and of empty sentences.
    """

    kind: RecordKind
    records: list[Candidate] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)

    def add_image(self, item: str, path: Path, written: str = "") -> None:
        """Add an image, or the reason why it cannot be used. Messages show its path as ``written``."""
        try:
            status = path.stat()
        except OSError as error:
            self.failed.append((item, f"{escaped(written or path)}: {error.strerror or 'it cannot be read'}"))
        else:
            kind = "clip" if is_video_name(path.name) else "image"
            about = Item(item, status.st_mtime_ns, status.st_size)
            self.records.append(Candidate(about, path.absolute(), 0, kind, changed_ns=status.st_ctime_ns))

    def add_sentence(self, item: str, text: str, file: Path) -> None:
        """Add a sentence of a file. The index recognises a changed sentence by its hash, in place of a time."""
        content = text.encode()
        about = Item(item, int.from_bytes(sha256(content).digest()[:7]), len(content))
        self.records.append(Candidate(about, file, 0, "sentence", text=text))


def list_records(
    data: str | Path, *, kind: RecordKind | None = None, videos: bool = False, allow_outside: bool = False
) -> RecordList:
    """List the records of an encoding.

    Args:
        data: a folder of images, at any depth, or a file that lists images or sentences: ``.txt`` with one a line, or a
            table as ``openvse data table`` describes, perhaps with a column ``id``. ``FILE#image=COLUMN``,
            ``FILE#caption=COLUMN`` and ``id=COLUMN`` name the columns. Paths are relative to the folder of the file.
            Without ids, the path or the number of the line is the id. Several sentences of a line are 3.1, 3.2, ...
        kind: images or texts. None recognises the kind by the names of the columns, or by the first line of a ``.txt``.
        videos: whether clips are read, too.
        allow_outside: whether images of a table may be outside its folder. See ``refuse_outside``. Images of a ``.txt``
            may, because you wrote it yourself.

    Raises:
        DataError: there is nothing to encode, the file cannot be understood, two records have one id, or an image is
            outside the folder of its table.
    """
    path, columns = columns_of(Path(data))
    if columns.named and path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(f"{escaped(data)}: only a table ({' '.join(TABLE_SUFFIXES)}) has columns to name")
    if path.is_dir():
        if kind == "texts":
            lists = " ".join((".txt", *TABLE_SUFFIXES))
            raise DataError(f"{escaped(path)} is a folder: sentences come from a file ({lists})")
        listing = _of_folder(path, videos)
    elif path.is_file():
        listing = _of_file(path, columns, kind, videos)
        if listing.kind == "images" and path.suffix.lower() != ".txt" and not allow_outside:
            refuse_outside(path, ((each.item.id, each.path) for each in listing.records))
    else:
        raise DataError(f"{escaped(path)}: there is no such file or folder: give a folder of images or a list")
    if not listing.records:
        what = "image" if listing.kind == "images" else "sentence"
        more = f" ({listing.left_out.describe()})" if listing.left_out else ""
        if listing.failed:
            more += f" (the first of {len(listing.failed)} failures: {listing.failed[0][1]})"
        raise DataError(f"there is no {what} to encode in {escaped(path)}{more}")
    _check_unique(path, listing.records)
    return listing


def _of_folder(folder: Path, videos: bool) -> RecordList:
    (media,) = each_once([list_media(folder, videos=videos)])
    listing = RecordList("images", left_out=media.left_out)
    listing.failed.extend((str(path), "the folder cannot be listed") for path in media.unreadable)
    for path in media.paths:
        listing.add_image(path.relative_to(folder).as_posix(), path)
    listing.records.sort(key=lambda record: os.fsencode(record.item.id))
    return listing


def _of_file(file: Path, columns: Columns, kind: RecordKind | None, videos: bool) -> RecordList:
    kind, fields, entries = _lines(file, kind) if file.suffix.lower() == ".txt" else _table(file, columns, kind)
    name = columns.id or "id"
    rows = [row for number, entry in entries for row in _cells(file, kind, fields, number, entry, name)]
    listing = RecordList(kind)
    if kind == "texts":
        for number, item, value in rows:
            if sentence := whole_characters(" ".join(value.split())):
                listing.add_sentence(item or str(number), sentence, file)
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
_Entries = Iterable[tuple[int, Mapping[str, Any]]]


def _lines(file: Path, kind: RecordKind | None) -> tuple[RecordKind, Sequence[str], _Entries]:
    """Return the kind of a text file, which its first line shows, and its non-empty lines as entries of one field."""
    try:
        lines = read_lines(file)
    except (OSError, TextError) as error:
        raise DataError(f"{escaped(file)} cannot be read ({error})") from error
    rows = [(number, {"line": line}) for number, line in enumerate(lines, start=1) if line]
    first = Path(rows[0][1]["line"].strip()).name if rows else ""
    kind = kind or ("images" if is_image(first) or is_video_name(first) else "texts")
    return kind, ["line"], rows


def _table(file: Path, columns: Columns, kind: RecordKind | None) -> tuple[RecordKind, Sequence[str], _Entries]:
    """Return the kind of a table, which the names of its columns show, its fields of this kind, and its rows."""
    names = names_in(file)
    if not names:
        next(read_entries(file, ()), None)  # raises for a line that is no entry
    if columns.named and file.suffix.lower() in (".csv", ".tsv"):
        columns = columns.in_text()
    image = columns.image_in(names)
    texts = columns.captions_in(names) or [name for name in names if name == "sentence"]
    fields: dict[RecordKind, Sequence[str]] = {"images": [image] if image else [], "texts": texts}
    if kind is None and bool(columns.image) is not bool(columns.captions):
        kind = "images" if columns.image else "texts"
    if kind is None and image and texts:
        raise DataError(
            f"{escaped(file)} has columns of images and of sentences ({image}, {texts[0]}): choose one with "
            f"{escaped(file)}#image={image} or {escaped(file)}#{','.join(f'caption={each}' for each in texts)}"
        )
    chosen: RecordKind = kind or ("images" if image else "texts")
    lacking = [name for name in columns.named if name not in names]
    if lacking or not fields[chosen]:
        allowed = {"images": IMAGE_FIELDS, "texts": (*CAPTION_FIELDS, "sentence")}[chosen]
        has = ", ".join(map(escaped, names)) or "none"
        raise DataError(
            f"{escaped(file)} has no column of {chosen} (it has {has}): call it one of {', '.join(lacking or allowed)}"
        )
    id_column = columns.id or "id"
    return chosen, fields[chosen], read_entries(file, [*fields[chosen], *([id_column] if id_column in names else [])])


def _cells(
    file: Path, kind: RecordKind, fields: Sequence[str], number: int, entry: Mapping[str, Any], id_field: str
) -> _Rows:
    """Return the path or the sentences of a row. Several sentences have the id or number of the row and their own."""
    item, values = whole_characters(_cell(entry.get(id_field))), [_cell(entry.get(fields[0]))]
    if kind == "texts":
        try:
            values = captions_of(entry, fields)
        except DataError as error:
            raise DataError(f"{escaped(file)}, line {number}: {error}") from None
    if len(values) < 2:
        return [(number, item, "".join(values))]
    return [(number, f"{item or number}.{place}", value) for place, value in enumerate(values, start=1)]


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _check_unique(data: Path, records: Iterable[Candidate]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.item.id in seen:
            raise DataError(f"{escaped(data)} gives the id {escaped(record.item.id)} twice: give each its own id")
        seen.add(record.item.id)


def bank_sentences(name: str) -> list[str]:
    """Return the sentences of a file, or the training captions of a data set, for a query bank."""
    if Path(name).is_file():
        return [each.text for each in list_records(name, kind="texts").records]
    drawn = drawn_for_bank(open_corpus(name, require_images=False, questions=False).split("train"))
    return [" ".join(text.split()) for text in drawn.captions[:MOST_TEXTS]]
