"""Splits in the names of folders and files: ``train/a.jpg``, ``val-00000.tar``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from openvse.corpus.corpus import Record
from openvse.corpus.splits import canonical_split, is_split

_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


def split_of_folder(path: PurePath) -> str:
    """Return the first folder of a relative path that is the name of a split, or ""."""
    return next((folder for folder in path.parts[:-1] if is_split(folder)), "")


def split_of_file(path: PurePath) -> str:
    """Return the split in a relative path: of a folder, or otherwise the first word of the file name that is one."""
    return split_of_folder(path) or next(filter(is_split, _WORD.findall(path.stem)), "")


def named_splits(paths: Sequence[PurePath]) -> list[str]:
    """Return the split of each file if all names contain one and there are several; otherwise "" for each.

    Args:
        paths: the paths relative to the data set, so that the folders above do not count.
    """
    splits = [split_of_file(path) for path in paths]
    return splits if _several(splits) else [""] * len(paths)


def with_folder_splits(records: Sequence[Record]) -> list[Record]:
    """Take the splits from the folders of the images if no record has one and all images are in such folders.

    Hugging Face's imagefolder reads a metadata file above the folders train, validation and test in this way.
    """
    splits = [split_of_folder(PurePath(record.image_id)) for record in records if record.captions]
    if any(record.split for record in records) or not _several(splits):
        return list(records)
    return [replace(record, split=split_of_folder(PurePath(record.image_id))) for record in records]


def _several(splits: Sequence[str]) -> bool:
    return all(splits) and len({canonical_split(split) for split in splits if split}) > 1
