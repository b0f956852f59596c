"""The random training view of an image."""

from __future__ import annotations

import torch
from PIL.Image import Image, Transpose


def random_view(image: Image, generator: torch.Generator | None, *, smallest: float = 0.6) -> Image:
    """Cut out a random window with the image's aspect ratio; mirror it half of the time (VSE-infinity, 4.1).

    Args:
        image: a decoded image.
        generator: the source of all randomness; the same state gives the same view. None, outside training, gives the
            whole image.
        smallest: the smallest share of the image's sides that the window's sides may have.
    """
    if generator is None:
        return image
    share, left, top, mirror = torch.rand(4, generator=generator).tolist()
    share = smallest + (1 - smallest) * share
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    x, y = int(left * (image.width - width + 1)), int(top * (image.height - height + 1))
    view = image.crop((x, y, x + width, y + height))
    return view.transpose(Transpose.FLIP_LEFT_RIGHT) if mirror < 0.5 else view
