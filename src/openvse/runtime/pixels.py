"""The preprocessing of images for exported models: what a backbone does, with Pillow and NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from PIL.Image import Image, Resampling

from openvse.errors import ModelError
from openvse.media.windows import pixel_windows


@dataclass(frozen=True)
class Preprocessing:
    """Turns a decoded image into pixels: cut windows, resize, cut the middle out, scale, normalise.

    Attributes:
        sizes: squares, in pixels, to which the whole image is resized; several are placed one below the other. Empty
            where ``shortest`` is given, or where nothing is resized.
        shortest: the length of the shorter side after resizing, which keeps the aspect ratio; None uses ``sizes``.
        crop: height and width that are cut out of the middle; None cuts nothing.
        rounds: whether the place of the crop is rounded to the nearest pixel, and not down.
        resample: the filter, as Pillow numbers it.
        factor: the factor of the values 0 to 255.
        mean: subtracted from each channel, after the factor.
        deviation: the divisor of each channel.
        order: ``multiply`` computes ``(value * factor - mean) / deviation``; ``subtract`` computes
            ``(value - mean) / deviation``.
        windows: grids of windows that are preprocessed one by one, as in the backbone ``crops``; None takes the image.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    shortest: int | None = None
    crop: tuple[int, int] | None = None
    rounds: bool = False
    resample: int = int(Resampling.BICUBIC)
    factor: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    deviation: tuple[float, ...] = (1.0, 1.0, 1.0)
    order: Literal["multiply", "subtract"] = "multiply"
    windows: tuple[tuple[int, float], ...] | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing that an export describes.

        Raises:
            ModelError: the description is damaged.
        """
        try:
            return cls(**{key: _tuples(value) for key, value in fields.items()})
        except TypeError as error:
            raise ModelError(f"the preprocessing of the export is damaged ({error}): export again") from error

    def __call__(self, image: Image) -> Float[np.ndarray, "... 3 H W"]:
        """Return the pixels of an upright RGB image."""
        if self.windows is not None:
            whole, boxes = replace(self, windows=None), pixel_windows(self.windows, *image.size)
            return np.stack([whole(image.crop(box)) for box in boxes])
        if len(self.sizes) < 2:
            return self._normalised(self._resized(image))
        most = max(size[1] for size in self.sizes)
        squares = [
            self._normalised(image.resize(size[::-1], Resampling(self.resample))) for size in self.sizes
        ]
        wide = [np.pad(each, ((0, 0), (0, 0), (0, most - each.shape[2]))) for each in squares]
        return np.concatenate(wide, axis=1)

    def _resized(self, image: Image) -> Image:
        filter_ = Resampling(self.resample)
        if self.sizes:
            image = image.resize(self.sizes[0][::-1], filter_)
        elif self.shortest is not None:
            short = min(image.size)
            sides = [
                self.shortest if side == short else int(self.shortest * side / short) for side in image.size
            ]
            image = image.resize((sides[0], sides[1]), filter_)
        if self.crop is None:
            return image
        height, width = self.crop
        free = (image.width - width) / 2, (image.height - height) / 2
        left, top = (round(each) if self.rounds else int(each // 1) for each in free)
        return image.crop((left, top, left + width, top + height))

    def _normalised(self, image: Image) -> Float[np.ndarray, "3 H W"]:
        values = np.array(image, dtype=np.float32).transpose(2, 0, 1)
        mean, deviation = (
            np.array(each, dtype=np.float32)[:, None, None] for each in (self.mean, self.deviation)
        )
        if self.order == "subtract":
            return np.asarray((values - mean) / deviation, dtype=np.float32)
        return np.asarray((values * np.float32(self.factor) - mean) / deviation, dtype=np.float32)


def _tuples(value: Any) -> Any:
    """Return the lists of JSON as tuples."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
