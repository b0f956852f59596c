"""Groups of images that are equal or nearly equal, and the image of each group to keep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError, check_number
from openvse.indexing.database import encode_id
from openvse.indexing.index import Index
from openvse.indexing.manifest import MANIFEST
from openvse.media.formats import HEIC, RAW
from openvse.media.listing import each_once, list_media
from openvse.media.names import format_of
from openvse.media.near_duplicates import SeenImage, duplicate_pairs, page_comparison, see_images
from openvse.media.ranks import Header, differing
from openvse.media.sidecars import Sidecars, read_facts
from openvse.search.exact import SAME, are_same, unit_vectors

_ROWS = 1024

_logger = logging.getLogger(__name__)


class _ImageFile(NamedTuple):
    """An image: its file, the bytes of it, the time of its last change, and, of a folder, its pixels and facts."""

    path: Path
    size: int
    modified_ns: int
    pixels: int = 0
    facts: Header = {}  # noqa: RUF012 - that it and its sidecars state; not changed


class DuplicateGroup(list[Path]):
    """The files of a group, the one to keep first, ``why`` it is, and ``lost``: by file, the facts that it lacks."""

    def __init__(self, files: Sequence[_ImageFile]) -> None:
        super().__init__(file.path for file in files)
        kept, *others = files
        self.why = _reason(kept, others[0])
        lost = ((file, {key: file.facts[key] for key in differing(file.facts, kept.facts)}) for file in others)
        self.lost: dict[Path, Header] = {file.path: facts for file, facts in lost if facts}


def find_duplicates(
    source: str | Path, threshold: float | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[list[DuplicateGroup], list[tuple[Path, str]]]:
    """Find images that are equal or nearly equal.

    All images of a folder are decoded and compared by a perceptual hash and then by their pixels, which needs no model.
    Size, compression and small changes of brightness hardly matter. The images of an index are compared by their
    embeddings, and nothing is decoded. Segments of clips are left out, as two files may share a scene without being the
    same. All pairs are compared, as blocks of a matrix product: the time grows with the square of the number of images.
    Other files of a folder are logged. A file of several names, by links, is one image. Files of one shot (raw and JPEG
    or HEIC of the same name) are no copies of each other, and a raw file is never one.

    Args:
        source: a folder of images, at any depth, or the folder of an index.
        threshold: for an index alone, the lowest cosine between an image and the one to keep. Default: 0.98. With
            several embeddings, the two most similar count.
        progress: called with the number of finished images of a folder, and of all its images.

    Returns:
        The groups, the largest first. The first image of a group is the one to keep: a raw file, the one with the most
        pixels, of a folder the one with the most facts (date, camera, caption), also in sidecars, then the largest
        file, the oldest, and the shortest path. Each of the others is nearly the same as it. A group says why
        (``why``), and which facts only the others state (``lost``).
        Also path and reason of the images that cannot be read.

    Raises:
        DataError: the folder does not exist or has no image, the threshold is not between 0 and 1 or is meant for a
            folder, or the index holds sentences.
    """
    if (Path(source) / MANIFEST).is_file():
        return _in_index(Index.open(source), SAME if threshold is None else threshold), []
    if threshold is not None:
        raise DataError(f"{source} is a folder of images, compared by their pixels: a threshold is for an index")
    (listing,) = each_once([list_media(source)])
    paths, problems = listing.paths, listing.problems()
    if not paths:
        lacks = f"there is no image in {source}: give a folder that holds images, at any depth"
        raise DataError("; ".join((lacks, *problems)))
    for problem in problems:
        _logger.warning("%s", problem)
    seen: list[tuple[_ImageFile, SeenImage]] = []
    failed: list[tuple[Path, str]] = []
    sidecars = Sidecars(listing.root, listing.sidecars, listing.names)
    for name, path, image in zip(listing.names, paths, see_images(paths, progress), strict=True):
        try:
            status = path.stat()
        except OSError as error:
            failed.append((path, error.strerror or "it cannot be read"))
            continue
        if image.look is None:
            failed.append((path, image.reason))
            continue
        facts = read_facts(path, [listing.root / each for each in sidecars.of(name)]).stated
        seen.append((_ImageFile(path, status.st_size, status.st_mtime_ns, image.pixels, facts), image))
    return _among(seen), failed


def _among(seen: list[tuple[_ImageFile, SeenImage]]) -> list[DuplicateGroup]:
    """Return the groups of decoded images."""
    seen.sort(key=lambda each: _worth(each[0]))
    files = [file for file, _ in seen]
    gone: set[int] = set()
    same, alike = duplicate_pairs(
        [image for _, image in seen],
        lambda better, other: not gone & {better, other} and _may_go(files[better].path, files[other].path),
    )
    groups = _groups(alike, gone)
    head_of = {other: first_one for first_one, others in groups.items() for other in others}
    for first, copy in same:  # it goes where the first of its content goes
        if _may_go(files[first].path, files[copy].path):
            groups.setdefault(head_of.get(first, first), []).append(copy)
    return _paths(files, groups)


def _may_go(better: Path, other: Path) -> bool:
    """Return whether an image is no more than a copy of another.

    A raw file never is, because it is the negative. Neither is the JPEG or the HEIC that a camera wrote beside it, or
    the JPEG beside a HEIC, which are files of the same name, also in a folder of their own.
    """
    kinds = {format_of(path.name) for path in (better, other)}
    is_shot = better.stem.casefold() == other.stem.casefold()
    return format_of(other.name) is not RAW and not (is_shot and kinds & {RAW, HEIC} and len(kinds) > 1)


def _in_index(index: Index, threshold: float) -> list[DuplicateGroup]:
    """Return the groups of the images of an index, without segments of clips."""
    check_number("threshold", threshold, 0, 1, above=True)
    if index.manifest.holds == "sentences":
        raise DataError(f"index {index.path} holds sentences: give an index of images")
    sizes, times = index.table.sizes.tolist(), index.table.modified_ns.tolist()
    images = {
        position: _ImageFile(index.image_path(position), sizes[position], times[position])
        for position in range(len(index))
        if index.span(position) is None
    }
    order = sorted(images, key=lambda position: _worth(images[position]))
    files = [images[position] for position in order]
    near = _near(index, np.array(order, np.int64), threshold)
    same_pages, gone = page_comparison(), set[int]()
    paths = ((pair, [files[place].path for place in pair]) for pair in near if gone.isdisjoint(pair))
    pairs = (pair for pair, each in paths if _may_go(*each) and same_pages(*each))
    return _paths(files, _groups(pairs, gone))


def _near(index: Index, order: Int[np.ndarray, "n"], threshold: float) -> Iterator[tuple[int, int]]:
    """Yield the pairs of places in an order of positions whose embeddings are as near as the threshold."""
    count = len(order)

    def block(start: int) -> Float[np.ndarray, "R K D"]:
        return unit_vectors(index.gather(order[start : start + _ROWS]), are_gaussians=index.manifest.gaussians)

    for first in range(0, count, _ROWS):
        rows = block(first)
        for second in range(first, count, _ROWS):
            for row, column in np.argwhere(are_same(rows, block(second), threshold)).tolist():
                if first + row < second + column:
                    yield first + row, second + column


def _groups(pairs: Iterable[tuple[int, int]], gone: set[int]) -> dict[int, list[int]]:
    """Return the images to keep, each with the images it replaces, which are all in a pair with it.

    So no chain joins images that do not resemble each other. In a pair, the better image comes first, and the pairs in
    which an image comes second are before those in which it comes first. ``gone`` is filled while the pairs come.
    """
    groups: dict[int, list[int]] = {}
    for better, other in pairs:
        if better not in gone and other not in gone:
            groups.setdefault(better, []).append(other)
            gone.add(other)
    return groups


def _paths(images: Sequence[_ImageFile], groups: Mapping[int, Sequence[int]]) -> list[DuplicateGroup]:
    """Return the groups, the largest first, and the one to keep first in each."""
    found = [DuplicateGroup([images[place] for place in (best, *sorted(others))]) for best, others in groups.items()]
    return sorted(found, key=lambda group: (-len(group), encode_id(str(group[0]))))


def _worth(image: _ImageFile) -> tuple[bool, int, int, int, int, int, bytes]:
    path = str(image.path)
    is_raw = format_of(image.path.name) is RAW  # of which only the preview was decoded
    return not is_raw, -image.pixels, -len(image.facts), -image.size, image.modified_ns, len(path), encode_id(path)


def _reason(kept: _ImageFile, other: _ImageFile) -> str:
    """Return in what an image comes before another."""
    states = f"states {', '.join(key for key in kept.facts if key not in other.facts)}"
    reasons = "a raw file", "more pixels", states, "the larger file", "the older file", "the shorter path"
    pairs = zip(reasons, _worth(kept), _worth(other), strict=False)
    return next((reason for reason, own, others in pairs if own != others), "equal to the other")
