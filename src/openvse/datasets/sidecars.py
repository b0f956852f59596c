"""Captions in a text file next to each image: the layout of kohya's trainers, img2dataset and many downloaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.layout import with_folder_splits
from openvse.datasets.rows import check_size, read_lines
from openvse.errors import DataError
from openvse.media.listing import list_media
from openvse.media.videos import is_video

SIDECAR_SUFFIXES = (".txt", ".caption")
"""The suffixes of the text file of an image, which replace the suffix of the image."""


def open_sidecars(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a folder of images with a text file next to each.

    The captions of ``a.jpg`` are in ``a.txt`` or ``a.caption``, one per line, at any depth. If all images are in
    folders named train, validation and test (or a synonym), these are the splits. An image without a text file counts
    as one without a caption. Items may be clips; if one with a text file is a video, videos without one count too.

    Args:
        root: the folder; image identifiers are paths relative to it.
        require_images: see ``build_corpus``.

    Raises:
        DataError: no image has a text file, one is not UTF-8 or not a caption, or see ``build_corpus``.
    """
    listing = list_media(root, videos=True)
    captions = {path: read_sidecar(path) for path in listing.paths}
    if all(lines is None for lines in captions.values()):
        raise DataError(
            f"{root}: no image has a text file next to it (a.jpg with a.txt, one caption per line); write them"
        )
    videos = any(is_video(path) for path, lines in captions.items() if lines is not None)
    problems = (listing if videos else list_media(root)).problems()
    records = [
        Record(path.relative_to(root).as_posix(), path, lines or ())
        for path, lines in captions.items()
        if videos or not is_video(path)
    ]
    corpus = build_corpus(root.resolve().name, with_folder_splits(records), require_images=require_images)
    return replace(corpus, problems=(*corpus.problems, *problems))


def detect_sidecars(root: Path) -> bool:
    """Return whether a folder holds an image with a text file next to it."""
    return root.is_dir() and any(map(_sidecar, list_media(root, videos=True).paths))


def read_sidecar(image: Path) -> Sequence[str] | None:
    """Return the captions in the text file of an image, one per line, or None if there is no such file.

    Raises:
        DataError: the file is not UTF-8, or larger than a caption can be.
    """
    path = _sidecar(image)
    if path is None:
        return None
    check_size(path, path.stat().st_size)
    return [line.strip() for line in read_lines(path) if line.strip()]


def _sidecar(image: Path) -> Path | None:
    return next((path for end in SIDECAR_SUFFIXES if (path := image.with_suffix(end)).is_file()), None)
