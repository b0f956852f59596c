"""The layout of data: places of files, names of splits, images outside of the folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from openvse.corpus.corpus import Record
from openvse.corpus.splits import canonical_split, is_split
from openvse.errors import DataError
from openvse.files import read_json
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
