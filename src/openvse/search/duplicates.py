"""Groups of images that are the same or nearly so, and which of each group to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from openvse.datasets.near_duplicates import SeenImage, alike_pairs, groups_of, see_images
from openvse.errors import DataError
from openvse.index.database import encode_id
from openvse.index.index import Index
from openvse.media.listing import list_media

_ROWS = 1024


@dataclass(frozen=True)
class Duplicate:
    """An image of a group.

    Attributes:
        path: the file.
        size: its bytes.
        modified_ns: time of its last change.
        pixels: width times height; 0 where the image was not decoded.
    """

    path: Path
    size: int
    modified_ns: int
    pixels: int = 0


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that are the same or nearly so.

    Attributes:
        keep: the one to keep: the one with the most pixels, then the largest file, the oldest, and the shortest path.
        others: the rest, in the same order.
    """

    keep: Duplicate
    others: tuple[Duplicate, ...]


def duplicates_in_folder(
    folder: str | Path, progress: Callable[[int, int], None] | None = None
) -> tuple[list[DuplicateGroup], list[tuple[Path, str]]]:
    """Find images in a folder that look alike, by a perceptual hash; no model is needed.

    Size, compression and small changes of brightness hardly matter. All images are decoded.

    Args:
        folder: the folder, at any depth.
        progress: called with how many images are done, and how many there are.

    Returns:
        The groups, the largest first, and path and reason of the images that cannot be read.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    paths = list_media(folder).paths
    if not paths:
        raise DataError(f"there is no image in {folder}: give a folder that holds images, at any depth")
    found: list[Duplicate] = []
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
        found.append(Duplicate(path, status.st_size, status.st_mtime_ns, image.pixels))
    return _groups(found, alike_pairs(sound, same_too=True)), failed


def duplicates_in_index(index: Index, threshold: float = 0.98) -> list[DuplicateGroup]:
    """Find images of an index whose embeddings are nearly the same; nothing is decoded.

    Segments of clips are not compared, as two files may share a scene without being the same. All other pairs are
    compared, as blocks of a matrix product: the time grows with the square of the number of images.

    Args:
        index: an index of images.
        threshold: the lowest cosine of two images of a group; for several embeddings, of the two that are most alike.

    Returns:
        The groups, the largest first.

    Raises:
        DataError: the threshold is not between 0 and 1, or the index holds sentences.
    """
    if not 0 < threshold <= 1:
        raise DataError(f"threshold is {threshold}: allowed are numbers above 0, up to 1")
    if index.manifest.holds == "sentences":
        raise DataError(f"index {index.path} holds sentences: give an index of images")
    sizes, times = index.table.sizes.tolist(), index.table.modified_ns.tolist()
    whole = [position for position in range(len(index)) if index.span(position) is None]
    found = [Duplicate(index.image_path(position), sizes[position], times[position]) for position in whole]
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


def _groups(found: Sequence[Duplicate], pairs: Iterable[tuple[int, int]]) -> list[DuplicateGroup]:
    """Join pairs that share an image, and order the groups and what is in them."""
    joined = groups_of(len(found), pairs)
    groups = [sorted((found[place] for place in group), key=_worth) for group in joined]
    groups.sort(key=lambda each: (-len(each), encode_id(str(each[0].path))))
    return [DuplicateGroup(each[0], tuple(each[1:])) for each in groups]


def _worth(duplicate: Duplicate) -> tuple[int, int, int, int, bytes]:
    path = str(duplicate.path)
    return -duplicate.pixels, -duplicate.size, duplicate.modified_ns, len(path), encode_id(path)
