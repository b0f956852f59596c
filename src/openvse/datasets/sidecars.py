"""Captions in a text file next to each image: the layout of kohya's trainers, img2dataset and many downloaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.layout import refuse_outside_text, with_folder_splits
from openvse.datasets.rows import captions_in, check_size, table_lines
from openvse.errors import DataError
from openvse.media.listing import Problem, list_media, skipped, walk_files
from openvse.media.matching import find_files
from openvse.media.videos import is_video

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
    captions = {path: _read(root, _sidecar(path, sidecars.files)) for path in listing.paths}
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


def _read(root: Path, path: Path | None) -> Sequence[str] | None:
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
