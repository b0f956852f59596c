"""Which image to caption next: the one whose caption is expected to tell most about all images of the folder."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Shaped

RIDGE = 1.0
"""The variance of a caption beside what its image tells, in units of the images' mean squared length."""

_SEEN = 4096  # images from which the main directions are computed
_BLOCK = 4096


def main_directions(described: Shaped[np.ndarray, "n L"], width: int = 64) -> Float[np.ndarray, "n d"]:
    """Return descriptions of images by their main directions, centred, with a mean squared length of 1.

    The directions are those of some images spread over all. The rows are read block by block.
    """
    seen = np.unique(np.linspace(0, len(described) - 1, _SEEN).astype(np.int64))
    some = described[seen].astype(np.float64)
    mean = some.mean(0)
    _, basis = np.linalg.eigh((some - mean).T @ (some - mean))
    basis = basis[:, ::-1][:, :width]
    images = np.empty((len(described), basis.shape[1]), np.float32)
    for start in range(0, len(images), _BLOCK):
        images[start : start + _BLOCK] = (described[start : start + _BLOCK] - mean) @ basis
    return images / np.float32(np.sqrt((images[seen] ** 2).sum(1).mean()) or 1.0)


def next_images(
    images: Float[np.ndarray, "n d"],
    captioned: Int[np.ndarray, "m"],
    count: int = 10,
    weights: Float[np.ndarray, "n"] | None = None,
) -> list[int]:
    """Return the positions of the images to caption next, in their order.

    A caption is a linear function of its image, and noise: so each captioned image makes the captions of images like it
    more certain. The next image is the one whose caption, whatever it says, makes the captions of all images most
    certain in sum. It is typical of many, far from what is captioned, and no copy of another.

    In formulas (Yu, Bi and Tresp, ICML 2006): ``P = (I + X^T X / r)^-1`` of the captioned images X is how uncertain the
    function is, ``A = sum_j w_j z_j z_j^T`` of all images, and the next image has the largest
    ``z^T P A P z / (r + z^T P z)``. A step is two products of a matrix and a vector.

    Args:
        images: descriptions of all images (``main_directions``).
        captioned: the positions of the images with captions.
        count: how many images to return, if so many are without captions.
        weights: w, how much each image counts. Default: all the same.
    """
    weights = np.ones(len(images), np.float32) if weights is None else weights
    some = images[captioned].astype(np.float64)
    spread = np.linalg.inv(np.eye(images.shape[1]) + some.T @ some / RIDGE)
    whole = (images * weights[:, np.newaxis]).T @ images / weights.sum()
    unsure, gains = (
        np.einsum("nd,nd->n", images @ each.astype(np.float32), images) for each in (spread, spread @ whole @ spread)
    )
    left = np.ones(len(images), bool)
    left[captioned] = False
    chosen: list[int] = []
    for _ in range(min(count, int(left.sum()))):
        place = int(np.argmax(np.where(left, gains / (RIDGE + unsure), -np.inf)))
        chosen.append(place)
        left[place] = False
        towards, total = spread @ images[place], RIDGE + float(unsure[place])
        shared, told = images @ towards.astype(np.float32), images @ (spread @ whole @ towards).astype(np.float32)
        gains += shared**2 * np.float32(towards @ whole @ towards / total**2) - 2 / total * shared * told
        unsure -= shared**2 / total
        spread -= np.outer(towards, towards) / total
    return chosen
