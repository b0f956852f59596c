"""A folder of images with a metadata file, as in Hugging Face's imagefolder, or with a text file next to each image.

The text files are the layout of kohya's trainers, img2dataset and many downloaders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import is_split
from openvse.datasets.layout import first_file, named_splits, refuse_outside_text, with_folder_splits
from openvse.datasets.rows import USUAL, Columns, captions_in, check_size, table_lines
from openvse.datasets.table import describe_other_tables, lone_tables, read_file
from openvse.errors import DataError
from openvse.media.listing import Problem, list_media, skipped, walk_files
from openvse.media.matching import find_files, paths_below
from openvse.media.videos import is_video

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
    records += [
        Record(path.relative_to(root).as_posix(), path, ()) for path in listing.paths if path not in listed
    ]
    corpus = build_corpus(root.resolve().name, records, require_images=require_images)
    return replace(corpus, problems=(*corpus.problems, *listing.problems(used)))


def metadata_files(root: Path) -> list[Path]:
    """Return the metadata file of a folder, or of each of its split subfolders, or nothing without one."""
    if not root.is_dir():
        return []
    for base in (root, root / "data"):
        inside = sorted(base.iterdir()) if base.is_dir() else []
        subfolders = [path for path in inside if path.is_dir() and is_split(path.name)]
        for folders in ([base], subfolders):
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
    clips. If one with a text file is a video, videos without one count too. Image identifiers are paths relative to the
    folder.
    """
    listing = list_media(root, videos=True)
    sidecars = find_files(path.with_suffix(end) for path in listing.paths for end in SIDECAR_SUFFIXES)
    captions = {path: _read_beside(root, _sidecar(path, sidecars.files)) for path in listing.paths}
    if all(lines is None for lines in captions.values()):
        raise DataError(
            f"{root}: no image has a text file next to it (a.jpg with a.txt, one caption per line): write them"
        )
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
    corpus = build_corpus(
        root.resolve().name, with_folder_splits(records, root), require_images=require_images
    )
    problems = [
        *skipped(alone, "text file(s) that are not the captions of an image"),
        *left_out,
    ]
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
