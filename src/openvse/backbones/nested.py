"""Regions and clips: another backbone sees each window or frame, whose mean feature is one local feature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from PIL.Image import Image, Transpose
from torch import Tensor

from openvse.backbones.base import Backbone, FrameLimit, NestedBackbone, all_real, random_view
from openvse.backbones.efficientnet_lite import EfficientNetLite0
from openvse.errors import RecipeError
from openvse.functional import pad, places_of
from openvse.kernels import is_traced
from openvse.media.images import within_memory
from openvse.media.resizing import pixel_windows, window_places
from openvse.media.videos import ClipSource, FrameSampling, SamplingMode, frames_of
from openvse.registry import Maker
from openvse.types import Features, Inputs

SMALL_WINDOWS = partial(EfficientNetLite0, image_size=112)  # the default inner backbone
CROPS_AT_ONCE = 128  # windows in one pass of the inner backbone, for any batch size


class Crops(NestedBackbone):
    """Local features from windows of an image: the mean feature that another backbone yields for each window.

    ``windows`` lists grids of windows. ``(3, 0.5)`` is 3 x 3 windows, row by row, each half as wide and half as high as
    the image. They are evenly spread from edge to edge (a single window is in the middle) and may overlap. Windows are
    cut out of the image at its decoded size, so that small objects in a large image keep their resolution. Each window
    passes through the preprocessing of the inner backbone. In training all are cut out of one random view.

    The side of a window in pixels is always the inner backbone's ``image_size``. The default inner backbone is
    EfficientNet-Lite0 at 112 pixels. A backbone that a recipe names has its own default
    (``backbone: efficientnet_lite0`` is 224 pixels, as everywhere). ``backbone.image_size=160`` alone changes the size.

    With ``shared`` the windows share one pass. The inner backbone sees the whole image once, resized so that the sides
    of the smallest window have ``image_size`` pixels. A window is the mean of the cells under it, each weighted by its
    area in the window. Such a feature differs, since a cell sees beyond its window, but it is cheaper: with the default
    windows, one image of 336 pixels has a third of the pixels of 26 images of 112.

    ``mirrored`` adds each window once more, mirrored from left to right. ``windows: [[1, 0.875], [2, 0.875]]`` are then
    the ten crops of VSE++ (the middle and the corners, 224 of 256 pixels), whose mean is its 10-crop feature.

    Args:
        backbone: the inner backbone, which sees the windows.
        windows: for each grid, the number of windows per side and a window's share of the image's width and height.
                The default is the whole image, 3 x 3 windows of half its sides and 4 x 4 of a third.
        shared: whether the windows share one pass of the inner backbone.
        mirrored: whether each window is also seen mirrored. The mirrored windows follow the others.

    Raises:
        RecipeError: ``mirrored`` and ``shared`` are both set, the backbone does not see images (or, with ``shared``,
            its features are not the cells of an image of any size), there is no grid, a grid has less than one window
            per side, or a share is not above 0 and at most 1.
    """

    usual_augmentation: ClassVar[str] = "region"
    gives_boxes = True

    def __init__(
        self,
        *,
        assets: Path | None = None,
        backbone: Maker[Backbone] = SMALL_WINDOWS,
        windows: tuple[tuple[int, float], ...] = ((1, 1.0), (3, 1 / 2), (4, 1 / 3)),
        shared: bool = False,
        mirrored: bool = False,
    ) -> None:
        _check(windows)
        if mirrored and shared:
            raise RecipeError("mirrored windows cannot share one pass of the whole image: set one of the two")
        inner = backbone(assets=assets)
        if inner.fingerprint is None or inner.reads_videos:
            raise RecipeError("backbone must see images, such as efficientnet_lite0 (for clips, set it inside frames)")
        size = inner.image_size if inner.any_size and inner.covers_image else None
        if shared and size is None:
            raise RecipeError(
                "shared: true needs a backbone that makes cells of an image of any size: take efficientnet_lite0 or "
                "resnet with fit: stretch, or leave shared out"
            )
        grids = " + ".join(f"{count}x{count} of {share:g}" for count, share in windows)
        super().__init__(
            inner,
            fingerprint=f"crops:{inner.fingerprint}:{grids}{':shared' if shared else ''}"
            f"{':mirrored' if mirrored else ''}",
        )
        self.windows, self.shared, self.mirrored = windows, shared, mirrored
        self.stored_images = inner.stored_images
        if shared and size is not None:
            inner.image_size = round(size / min(share for _, share in windows))
        else:
            self.stored_images *= sum(count * count for count, _ in windows) * (1 + mirrored)

    @property
    def shorter_side(self) -> int | None:
        """The shorter side at which the smallest window has the pixels that the inner backbone needs."""
        if (side := self.inner.shorter_side) is None or self.shared:
            return side
        return math.ceil(side / min(share for _, share in self.windows))

    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        """Cut the windows out of an image unless they share one pass, and preprocess them for the inner backbone."""
        return self._windows_of(image, self.inner.preprocess)

    def levels(self, image: Image) -> Shaped[Tensor, "... 3 H W"]:
        return self._windows_of(image, self.inner.levels)

    def _windows_of(self, image: Image, make: Callable[[Image], Tensor]) -> Tensor:
        if self.shared:
            return make(image)
        seen: list[Tensor] = []
        for mirrored in (False, True)[: 1 + self.mirrored]:
            for box in pixel_windows(self.windows, image.width, image.height):
                crop = image.crop(box)
                seen.append(make(crop.transpose(Transpose.FLIP_LEFT_RIGHT) if mirrored else crop))
        return torch.stack(seen)

    def see(self, inputs: Inputs) -> Features:
        boxes = torch.tensor(list(window_boxes(self.windows)) * (1 + self.mirrored), device=inputs.values.device)
        if self.shared:
            seen = self.inner(inputs).local
            seen = _area_weights(boxes, math.isqrt(seen.shape[1])).to(seen) @ seen
        else:
            windows = inputs.values.flatten(0, 1)
            # A program for batches of any size does not cut them.
            pixels = [windows] if is_traced() else torch.split(windows, CROPS_AT_ONCE)
            seen = torch.cat([self.mean_features(some) for some in pixels])
        local = all_real(seen.view(inputs.values.shape[0], len(boxes), self.feature_dim))
        return replace(local, boxes=boxes.expand(inputs.values.shape[0], -1, -1))


def _area_weights(boxes: Float[Tensor, "W 4"], side: int) -> Float[Tensor, "W N"]:
    """Return the share of each window's area that each cell of a square grid over the image covers, row by row."""
    edges = torch.arange(side + 1, device=boxes.device) / side
    left, top, right, bottom = boxes.unsqueeze(1).unbind(2)
    columns = (torch.minimum(right, edges[1:]) - torch.maximum(left, edges[:-1])).clamp(min=0)
    rows = (torch.minimum(bottom, edges[1:]) - torch.maximum(top, edges[:-1])).clamp(min=0)
    areas = (rows.unsqueeze(2) * columns.unsqueeze(1)).flatten(1)
    return areas / areas.sum(dim=1, keepdim=True)


def _check(windows: tuple[tuple[int, float], ...]) -> None:
    if not windows:
        raise RecipeError("windows is empty: give one grid or more, such as [[1, 1.0], [3, 0.5]]")
    for count, share in windows:
        if count < 1 or not 0 < share <= 1:
            raise RecipeError(f"windows has ({count}, {share:g}): give 1 or more a side, and a share above 0, up to 1")


def window_boxes(windows: tuple[tuple[int, float], ...]) -> Iterator[tuple[float, float, float, float]]:
    """Yield left, top, right and bottom of the windows as fractions of the image, row by row of each grid."""
    for count, share in windows:
        starts = [(1 - share) * place for place in window_places(count)]
        for top in starts:
            for left in starts:
                yield left, top, min(1.0, left + share), min(1.0, top + share)


FRAMES_AT_ONCE = 128  # frames in one pass of a frozen backbone, for any batch size


class Frames(NestedBackbone):
    """Local features from frames of a clip: the mean feature that another backbone yields for each (PVSE, section 3.1).

    An image is a clip of one frame. All frames of a clip get the same random view in training. A store holds up to
    ``stored_frames`` of each clip, of which ``num_frames`` are chosen anew each time, as they are from the file.

    Args:
        backbone: the inner backbone, which sees the frames.
        sampling: how frames are chosen. See ``videos.FrameSampling``.
        num_frames: the largest number of frames of a clip that the model sees.
        fps: the number of instants per second from which ``run`` chooses.
        stored_frames: the largest number of frames of a clip in a store for ``run``. ``even`` stores ``num_frames``.

    Raises:
        RecipeError: the backbone does not see images, or a number of frames is too small.
    """

    usual_augmentation: ClassVar[str] = "none"
    reads_videos = True

    def __init__(
        self,
        *,
        assets: Path | None = None,
        backbone: Maker[Backbone] = EfficientNetLite0,
        sampling: SamplingMode = "run",
        num_frames: int = 8,
        fps: float = 8.0,
        stored_frames: int = 64,
    ) -> None:
        even = sampling == "even"
        if min(num_frames, fps) <= 0 or (stored_frames < num_frames and not even):
            raise RecipeError(
                f"num_frames is {num_frames}, fps {fps} and stored_frames {stored_frames}: the first two must be "
                f"above 0, and the third not below the first"
            )
        image = backbone(assets=assets)
        if image.fingerprint is None or image.reads_videos:
            raise RecipeError("backbone must see images, such as efficientnet_lite0 or transformers_vision")
        stored = f"even:{num_frames}" if even else f"{fps:g}fps:{stored_frames}"
        super().__init__(image, fingerprint=f"frames:{image.fingerprint}:{stored}")
        most = num_frames if even else stored_frames
        self.stored_images = most * image.stored_images
        self.frame_limit = FrameLimit(num_frames, sampling)
        self.seen = FrameSampling(sampling, num_frames, fps)
        self.stored = FrameSampling(sampling, most, fps)

    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        return self.inner.preprocess(image)

    def levels(self, image: Image) -> Shaped[Tensor, "... 3 H W"]:
        return self.inner.levels(image)

    def read(
        self,
        source: ClipSource,
        generator: torch.Generator | None = None,
        *,
        to_store: bool = False,
        exact: bool = True,
    ) -> Shaped[Tensor, "... 3 H W"]:
        """Decode the frames of a clip, ``[N, 3, H, W]``. The generator chooses the frames and their common view."""
        place = None if generator is None else float(torch.rand(1, generator=generator))
        view = None if generator is None else generator.get_state()
        pixels = []
        with within_memory(source):
            sampling, side = self.stored if to_store else self.seen, self.decoded_for(generator, exact=exact)
            for frame in frames_of(source, sampling, place=place, shorter_side=side):
                if generator is not None and view is not None:
                    generator.set_state(view)
                pixels.append(self.prepared(random_view(frame, generator)))
        return torch.stack(pixels)

    def collate(self, items: Sequence[Shaped[Tensor, "... 3 H W"]]) -> Inputs:
        """Join clips of different lengths: ``[B, N, 3, H, W]`` and the mask of the real frames."""
        return pad(items)

    def see(self, inputs: Inputs) -> Features:
        """Return a feature for each frame. Pixels without a mask, ``[B, 3, H, W]``, are clips of one frame."""
        if inputs.mask is None:
            return all_real(self.mean_features(inputs.values).unsqueeze(1))
        places = places_of(inputs.mask)
        pixels = inputs.values[places] if len(places[0]) < inputs.mask.numel() else inputs.values.flatten(0, 1)
        seen = torch.cat([self.mean_features(some) for some in torch.split(pixels, FRAMES_AT_ONCE)])
        local = seen.new_zeros(*inputs.mask.shape, self.feature_dim)
        return Features(local.index_put(places, seen), inputs.mask)
