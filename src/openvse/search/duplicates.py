"""Groups of images that are the same or nearly so, and which of each group to keep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from openvse.datasets.near_duplicates import SeenImage, duplicate_pairs, groups_of, see_images
from openvse.errors import DataError
from openvse.index.database import encode_id
from openvse.index.index import Index
from openvse.index.manifest import MANIFEST
from openvse.media.listing import list_media

_ROWS = 1024

_logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """An image: its file, the bytes of it, the time of its last change, and width times height if it was decoded."""

    path: Path
    size: int
    modified_ns: int
    pixels: int = 0


def find_duplicates(
    source: str | Path, threshold: float = 0.98, progress: Callable[[int, int], None] | None = None
) -> tuple[list[list[Path]], list[tuple[Path, str]]]:
    """Find images that are the same or nearly so.

    All images of a folder are decoded and compared by a perceptual hash, which needs no model; size, compression and
    small changes of brightness hardly matter. The images of an index are compared by their embeddings, and nothing is
    decoded; segments of clips are left out, as two files may share a scene without being the same. All pairs are
    compared, as blocks of a matrix product: the time grows with the square of the number of images.

    Args:
        source: a folder of images, at any depth, or the folder of an index.
        threshold: for an index, the lowest cosine of two images of a group; for several embeddings, of the two that
            are most alike.
        progress: called with how many images of a folder are done, and how many there are.

    Returns:
        The groups, the largest first. The first image of a group is the one to keep: the one with the most pixels, then
        the largest file, the oldest, and the shortest path. Also path and reason of the images that cannot be read.

    Raises:
        DataError: there is no such folder, or no image in it; the threshold is not between 0 and 1, or the index holds
            sentences.
    """
    if (Path(source) / MANIFEST).is_file():
        return _in_index(Index.open(source), threshold), []
    listing = list_media(source)
    paths, problems = listing.paths, listing.problems()
    if not paths:
        lacks = f"there is no image in {source}: give a folder that holds images, at any depth"
        raise DataError("; ".join((lacks, *problems)))
    for problem in problems:
        _logger.warning("%s", problem)
    found: list[_Found] = []
    sound: list[SeenImage] = []
    failed: list[tuple[Path, str]] = []
    for path, image in zip(paths, see_images(paths, progress), strict=True):
        try:
            status = path.stat()
        except OSError as error:
            failed.append((path, error.strerror or "it cannot be read"))
            continue
        if image.look is None:
            failed.append((path, image.reason))
            continue
        sound.append(image)
        found.append(_Found(path, status.st_size, status.st_mtime_ns, image.pixels))
    same, alike = duplicate_pairs(sound)
    return _groups(found, [*same, *alike]), failed


def _in_index(index: Index, threshold: float) -> list[list[Path]]:
    """Return the groups of the images of an index, without segments of clips."""
    if not 0 < threshold <= 1:
        raise DataError(f"threshold is {threshold}: allowed are numbers above 0, up to 1")
    if index.manifest.holds == "sentences":
        raise DataError(f"index {index.path} holds sentences: give an index of images")
    sizes, times = index.table.sizes.tolist(), index.table.modified_ns.tolist()
    whole = [position for position in range(len(index)) if index.span(position) is None]
    found = [_Found(index.image_path(position), sizes[position], times[position]) for position in whole]
    vectors = index.vectors if len(whole) == len(index) else index.gather(np.array(whole, np.int64))
    return _groups(found, _near(vectors, threshold))


@torch.inference_mode()
def _near(vectors: Float[np.ndarray, "count K D"], threshold: float) -> Iterable[tuple[int, int]]:
    """Yield the pairs of positions whose embeddings are as near as the threshold says."""
    count, num_embeddings, _ = vectors.shape

    def block(start: int) -> torch.Tensor:
        some = torch.from_numpy(np.asarray(vectors[start : start + _ROWS], np.float32))
        return torch.nn.functional.normalize(some, dim=-1).flatten(0, 1)

    for first in range(0, count, _ROWS):
        rows = block(first)
        for second in range(first, count, _ROWS):
            products = rows @ block(second).T
            shape = (len(rows) // num_embeddings, num_embeddings, -1, num_embeddings)
            near = products.view(shape).amax(dim=(1, 3)) >= threshold - 1e-6
            for row, column in near.nonzero().tolist():
                if first + row < second + column:
                    yield first + row, second + column


def _groups(found: Sequence[_Found], pairs: Iterable[tuple[int, int]]) -> list[list[Path]]:
    """Join pairs that share an image, and order the groups and what is in them."""
    joined = groups_of(len(found), pairs)
    groups = [
        [each.path for each in sorted((found[place] for place in group), key=_worth)] for group in joined
    ]
    return sorted(groups, key=lambda group: (-len(group), encode_id(str(group[0]))))


def _worth(image: _Found) -> tuple[int, int, int, int, bytes]:
    path = str(image.path)
    return -image.pixels, -image.size, image.modified_ns, len(path), encode_id(path)
