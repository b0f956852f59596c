"""Data sets of Parquet or Arrow files with images and captions, as on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.arrow_tables import ARROW_SUFFIXES, largest_part, read_arrow
from openvse.datasets.layout_splits import named_splits
from openvse.errors import DataError
from openvse.media.listing import walk_files
from openvse.media.packed import PackedFile

_LARGE_PART = 512 << 20


def open_parquet(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a folder of Parquet or Arrow files, or one such file, with images and captions.

    The columns are those of ``openvse data table``; ``image`` holds the bytes of images, or a structure of ``bytes``
    and ``path`` as on the Hugging Face hub. Images are read from the files when they are needed. Splits come from a
    column ``split``, or otherwise from the names of files or folders (``data/train-00000-of-00002.parquet``). The
    identifier of an image is its ``path`` if all paths differ, otherwise its file and row. pyarrow is needed (extra
    ``parquet``).

    Args:
        root: the folder, or the file.
        require_images: see ``build_corpus``.

    Raises:
        DataError: there is no such file, one is damaged or lacks a column, or see ``build_corpus``.
        OpenVSEError: pyarrow is not installed.
    """
    folder = root.parent if root.is_file() else root
    files = [root] if root.is_file() else find_arrow(root)
    splits = named_splits([file.relative_to(folder) for file in files])
    return arrow_corpus(root, files, splits, require_images=require_images)


def arrow_corpus(root: Path, files: Sequence[Path], splits: Sequence[str], *, require_images: bool) -> Corpus:
    """Join files, each with a split or "", into a corpus; ``root`` gives its name and the base of paths in messages.

    Raises:
        DataError: there is no file, one is damaged or lacks a column, or see ``build_corpus``.
    """
    if not files:
        raise DataError(f"{root}: no {' or '.join(ARROW_SUFFIXES)} file there; check the folder")
    folder = root.parent if root.is_file() else root
    records = [
        replace(record, split=record.split or split)
        for file, split in zip(files, splits, strict=True)
        for record in read_arrow(file)
    ]
    corpus = build_corpus(root.resolve().name, identified(records, folder), require_images=require_images)
    large = max(files, key=largest_part)
    if (size := largest_part(large)) <= _LARGE_PART:
        return corpus
    advice = (
        f"row groups of up to {size / 2**30:.1f} GiB are held in memory while images are read (first: {large}); "
        "write the file with row groups of some hundred images"
    )
    return replace(corpus, problems=(*corpus.problems, advice))


def find_arrow(root: Path) -> list[Path]:
    """List the Parquet files below a folder, or if there are none, the Arrow files without caches of transforms."""
    for suffix in ARROW_SUFFIXES:
        files = (path for path in walk_files(root) if path.suffix.lower() == suffix)
        found = sorted(path for path in files if not path.name.startswith("cache-"))
        if found:
            return found
    return []


def identified(records: Sequence[Record], root: Path) -> Iterator[Record]:
    """Give the rows of tables their identifiers, and join rows that name the same file.

    Args:
        records: the records of ``read_arrow``.
        root: the folder of the data set; the identifier of a file is its path below it.

    Raises:
        DataError: rows of one file have different splits.
    """
    names = [record.image_id for record in records if isinstance(record.path, PackedFile)]
    unique = all(names) and len(set(names)) == len(names)
    files: dict[Path, Record] = {}
    count: dict[Path, int] = {}
    for record in records:
        if isinstance(record.path, PackedFile):
            table = record.path.container
            number = count[table] = count.get(table, -1) + 1
            place = table.relative_to(root).with_suffix("").as_posix()
            yield record if unique else replace(record, image_id=f"{place}/{number:06d}")
        else:
            files[record.path] = _joined(files.get(record.path), record)
    for path, record in files.items():
        inside = path.is_relative_to(root)
        yield replace(record, image_id=path.relative_to(root).as_posix() if inside else record.image_id)


def _joined(known: Record | None, record: Record) -> Record:
    if known is None:
        return record
    if known.split != record.split:
        raise DataError(
            f"image {record.image_id!r} is in split {record.split!r} and in {known.split!r}; "
            "give all rows of an image one split"
        )
    return replace(known, captions=[*known.captions, *record.captions])
