"""A table of captions, or a folder of images with a metadata file or with a text file next to each image.

The table is CSV, TSV, Parquet or lines of JSON, with the same names of columns or keys. Metadata files are those of
Hugging Face's imagefolder. Text files are the layout of kohya's trainers, img2dataset and many downloaders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import is_split
from openvse.datasets.parquet import ARROW_SUFFIXES, column_names, identified, read_arrow, read_columns
from openvse.datasets.rows import (
    COMMENTS,
    SPLIT_FIELD,
    USUAL,
    Columns,
    captions_in,
    check_size,
    field_names,
    first_file,
    named_splits,
    numbered_objects,
    read_record,
    read_rows,
    refuse_outside_text,
    table_lines,
    with_folder_splits,
)
from openvse.errors import DataError
from openvse.media.listing import Problem, list_media, skipped, walk_files
from openvse.media.matching import find_files, paths_below
from openvse.media.videos import is_video

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
            return iter(identified(list(read_arrow(file, columns)), file.parent, by_id=bool(columns.id))[0])
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
    tables = [path for path in files if path.name[0] != "." and path.is_file() and not _lacking(path, columns)]
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


METADATA = ("metadata.jsonl", "metadata.csv")
"""The names of metadata files. metadata.parquet is read too, but only for captions."""

_NAMES = (*METADATA, "metadata.parquet")


def open_folder(root: Path, *, require_images: bool = True, columns: Columns = USUAL) -> Corpus:
    """Open a folder of images with captions.

    ``metadata.jsonl`` has a line ``{"file_name": "a.jpg", "captions": ["...", "..."], "split": "train"}`` for each
    image. ``metadata.csv`` and ``metadata.parquet`` have columns with these names. The fields of the image and of its
    captions (a string or a list) may have the other names of ``openvse list data table``. ``split`` is optional.
    Instead of one metadata file in the folder there may be one in each of the subfolders train, validation and test,
    which are then the splits, also below ``data/``. There may also be one file for all, with the images in such
    folders. Without a metadata file, the only table or ``.jsonl`` file in the folder with images and captions is read,
    or train.csv, validation.csv and test.csv. An unlisted image counts as one without a caption. Items may be clips. If
    one is a video, unlisted videos count too. Image identifiers are paths relative to the folder.
    """
    files = metadata_files(root)
    entries = [record for file in files for record in _read(file, root, columns)]
    records = _below(root, entries if files else _read_tables(root, columns), by_id=bool(columns.id))
    records = with_folder_splits(records, root)
    listed = {record.path for record in records}
    videos = any(isinstance(path, Path) and is_video(path) for path in listed)
    listing = list_media(root, videos=videos)
    used = [path for path in listed if isinstance(path, Path)]
    records += [Record(path.relative_to(root).as_posix(), path, ()) for path in listing.paths if path not in listed]
    corpus = build_corpus(root.resolve().name, records, require_images=require_images)
    return replace(corpus, problems=(*corpus.problems, *listing.problems(used)))


def metadata_files(root: Path) -> list[Path]:
    """Return the metadata file of a folder, or of each of its split subfolders, or nothing without one."""
    if not root.is_dir():
        return []
    for base in (root, root / "data"):
        inside = sorted(base.iterdir()) if base.is_dir() else []
        for folders in ([base], [path for path in inside if path.is_dir() and is_split(path.name)]):
            if files := [path for folder in folders if (path := first_file(folder, _NAMES))]:
                return files
    return []


def _read(file: Path, root: Path, columns: Columns) -> Iterator[Record]:
    """Yield the records of one metadata file, with identifiers relative to the root."""
    refuse_outside_text(root, file)
    folder = file.parent.relative_to(root)
    split = folder.name if is_split(folder.name) else ""
    for record in read_file(file, columns):
        image_id = record.image_id if columns.id else (folder / record.image_id).as_posix()
        yield replace(record, image_id=image_id, split=record.split or split)


def _below(root: Path, records: Sequence[Record], *, by_id: bool) -> list[Record]:
    """Return records of images below the root with their paths and identifiers there, however a line names them."""
    places = paths_below(root, (each.path for each in records if isinstance(each.path, Path)))
    return [
        replace(record, path=place, image_id=record.image_id if by_id else place.relative_to(root).as_posix())
        if isinstance(record.path, Path) and (place := places[record.path]).is_relative_to(root)
        else record
        for record in records
    ]


def _read_tables(root: Path, columns: Columns) -> list[Record]:
    """Return the records of the tables of a folder without metadata files."""
    files = lone_tables(root, columns)
    for file in files:
        refuse_outside_text(root, file)
    if not files:
        raise DataError(
            f"{root}: no {' or '.join(METADATA)} there or in train/, validation/, test/, and no table of captions; "
            f"{describe_other_tables(root, columns) or 'write one'}"
        )
    return [
        replace(record, split=record.split or split)
        for file, split in named_splits(files, root).items()
        for record in read_file(file, columns)
    ]


SIDECAR_SUFFIXES = (".txt", ".caption")
"""The suffixes of the text file of an image, which replace the suffix of the image."""


def open_sidecars(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a folder of images with a text file next to each.

    The captions of ``a.jpg`` are in ``a.txt`` or ``a.caption``, one per line, at any depth. If all images are in
    folders named train, validation and test (or a synonym), these are the splits. An image without a text file counts
    as one without a caption. A text file without an image is reported (``find_files`` compares the names). Items may be
    clips. If one with a text file is a video, others count too. Image identifiers are paths relative to the folder.
    """
    listing = list_media(root, videos=True)
    sidecars = find_files(path.with_suffix(end) for path in listing.paths for end in SIDECAR_SUFFIXES)
    captions = {path: _read_beside(root, _sidecar(path, sidecars.files)) for path in listing.paths}
    if all(lines is None for lines in captions.values()):
        raise DataError(f"{root}: no image has a text file beside it (a.jpg with a.txt, a caption a line): write them")
    videos = any(is_video(path) for path, lines in captions.items() if lines is not None)
    left_out = (listing if videos else list_media(root)).problems()
    of_text = Counter(_sidecar(path, sidecars.files) for path, lines in captions.items() if lines is not None)
    shared = [str(text) for text, count in of_text.items() if count > 1]
    texts = (path for path in walk_files(root) if path.suffix.lower() in SIDECAR_SUFFIXES)
    alone = [str(path) for path in texts if path not in of_text]
    records = [
        Record(path.relative_to(root).as_posix(), path, lines or ())
        for path, lines in captions.items()
        if videos or not is_video(path)
    ]
    corpus = build_corpus(root.resolve().name, with_folder_splits(records, root), require_images=require_images)
    problems = [*skipped(alone, "text file(s) that are not the captions of an image"), *left_out]
    if shared:
        problems.append(Problem(f"{len(shared)} text file(s) are the captions of several images", shared))
    return replace(corpus, problems=(*corpus.problems, *problems))


def detect_sidecars(root: Path) -> bool:
    """Return whether a folder holds an image with a text file next to it."""
    media = list_media(root, videos=True).paths if root.is_dir() else []
    return bool(find_files(path.with_suffix(end) for path in media for end in SIDECAR_SUFFIXES).files)


def _read_beside(root: Path, path: Path | None) -> Sequence[str] | None:
    """Return the captions in a text file, one per line, or None without a file."""
    if path is None or not path.is_file():  # a pipe would be waited for
        return None
    if path.is_symlink() or path.parent.is_symlink():
        refuse_outside_text(root, path)
    check_size(path, path.stat().st_size)
    lines = filter(None, map(str.strip, table_lines(path)))
    try:
        return [each for line in lines for each in captions_in("caption", line)]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _sidecar(image: Path, files: Mapping[Path, Path]) -> Path | None:
    return next((files[path] for end in SIDECAR_SUFFIXES if (path := image.with_suffix(end)) in files), None)
