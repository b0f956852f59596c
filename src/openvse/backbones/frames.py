"""Clips: an image backbone sees each frame, whose mean feature is one local feature of the clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from openvse.backbones.base import Backbone, FrameLimit, NestedBackbone, all_real, random_view
from openvse.backbones.efficientnet_lite import EfficientNetLite0
from openvse.errors import RecipeError
from openvse.functional import pad, places_of
from openvse.media.images import within_memory
from openvse.media.videos import ClipSource, FrameSampling, SamplingMode, frames_of
from openvse.registry import Maker
from openvse.types import Features, Inputs

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
            raise RecipeError(
                "backbone must be one that sees images, such as efficientnet_lite0 or transformers_vision"
            )
        stored = f"even:{num_frames}" if even else f"{fps:g}fps:{stored_frames}"
        super().__init__(image, fingerprint=f"frames:{image.fingerprint}:{stored}")
        most = num_frames if even else stored_frames
        self.stored_images = most * image.stored_images
        self.frame_limit = FrameLimit(num_frames, sampling)
        self.seen = FrameSampling(sampling, num_frames, fps)
        self.stored = FrameSampling(sampling, most, fps)

    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        return self.inner.preprocess(image)

    def read(
        self,
        source: ClipSource,
        generator: torch.Generator | None = None,
        *,
        to_store: bool = False,
        exact: bool = True,
    ) -> Float[Tensor, "... 3 H W"]:
        """Decode the frames of a clip, ``[N, 3, H, W]``. The generator chooses the frames and their common view."""
        place = None if generator is None else float(torch.rand(1, generator=generator))
        view = None if generator is None else generator.get_state()
        pixels = []
        with within_memory(source):
            sampling, side = self.stored if to_store else self.seen, self.decoded_for(generator, exact=exact)
            for frame in frames_of(source, sampling, place=place, shorter_side=side):
                if generator is not None and view is not None:
                    generator.set_state(view)
                pixels.append(self.preprocess(random_view(frame, generator)))
        return torch.stack(pixels)

    def collate(self, items: Sequence[Float[Tensor, "... 3 H W"]]) -> Inputs:
        """Join clips of different lengths: ``[B, N, 3, H, W]`` and the mask of the real frames."""
        return pad(items)

    def see(self, inputs: Inputs) -> Features:
        """Return a feature for each frame. Pixels without a mask, ``[B, 3, H, W]``, are clips of one frame."""
        if inputs.mask is None:
            return all_real(self.mean_features(inputs.values).unsqueeze(1))
        places = places_of(inputs.mask)
        pixels = (
            inputs.values[places] if len(places[0]) < inputs.mask.numel() else inputs.values.flatten(0, 1)
        )
        seen = torch.cat([self.mean_features(some) for some in torch.split(pixels, FRAMES_AT_ONCE)])
        local = seen.new_zeros(*inputs.mask.shape, self.feature_dim)
        return Features(local.index_put(places, seen), inputs.mask)
