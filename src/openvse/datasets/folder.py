"""A folder of images with a metadata file beside them: the convention of Hugging Face's imagefolder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import is_split
from openvse.datasets.csv_file import read_lines, read_table
from openvse.errors import DataError
from openvse.media.images import find_images
from openvse.media.videos import find_clips, is_video

METADATA = ("metadata.jsonl", "metadata.csv")


def open_folder(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a folder of images with captions.

    ``metadata.jsonl`` has a line ``{"file_name": "a.jpg", "captions": ["...", "..."], "split": "train"}`` for
    each image; ``text`` or ``caption`` with one sentence may stand for ``captions``, and ``split`` may be
    absent. ``metadata.csv`` has the columns that ``open_csv`` reads. Instead of one metadata file in the
    folder there may be one in each of the subfolders train, validation and test, which are then the splits.
    An image that no line lists counts as one without a caption. Items may be clips; where one is a video,
    that holds for videos too.

    Args:
        root: the folder; image identifiers are paths relative to it.
        require_images: see ``build_corpus``.

    Raises:
        DataError: when there is no metadata, a line is malformed (with its number), and as ``build_corpus``
            does.
    """
    files = metadata_files(root)
    if not files:
        raise DataError(
            f"{root}: no {' or '.join(METADATA)} there or in train/, validation/, test/; write one"
        )
    records = [record for file in files for record in _read(file, root)]
    listed = {record.path for record in records}
    find = find_clips if any(map(is_video, listed)) else find_images
    records += [
        Record(path.relative_to(root).as_posix(), path, ()) for path in find(root) if path not in listed
    ]
    return build_corpus(root.resolve().name, records, require_images=require_images)


def metadata_files(root: Path) -> list[Path]:
    """Return the metadata file of a folder, or those of its split subfolders; empty when there is none."""
    if not root.is_dir():
        return []
    subfolders = sorted(path for path in root.iterdir() if path.is_dir() and is_split(path.name))
    for folders in ([root], subfolders):
        files = [path for folder in folders if (path := _first_metadata(folder))]
        if files:
            return files
    return []


def _first_metadata(folder: Path) -> Path | None:
    return next((folder / name for name in METADATA if (folder / name).is_file()), None)


def _read(file: Path, root: Path) -> Iterator[Record]:
    """Yield the records of one metadata file, with identifiers relative to the root."""
    folder = file.parent.relative_to(root)
    for record in read_table(file) if file.suffix == ".csv" else _read_json_lines(file):
        image_id = (folder / record.image_id).as_posix()
        yield replace(record, image_id=image_id, split=record.split or folder.name)


def _read_json_lines(file: Path) -> Iterator[Record]:
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            try:
                yield _record(json.loads(line), file.parent)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: not JSON ({error.msg}); write one object a line"
                ) from error
            except DataError as error:
                raise DataError(f"{file}, line {number}: {error}") from None


def _record(entry: Any, folder: Path) -> Record:
    match entry:
        case {"file_name": str(name), "captions": list(captions)}:
            pass
        case {"file_name": str(name), "text": caption} | {"file_name": str(name), "caption": caption}:
            captions = [caption]
        case {"file_name": str(name)}:
            captions = []
        case _:
            raise DataError('write {"file_name": "a.jpg", "captions": ["a sentence", "another"]}')
    if not all(isinstance(caption, str) for caption in captions):
        raise DataError(f"the captions of {name!r} must be strings")
    return Record(name, folder / name, captions, str(entry.get("split") or ""))
