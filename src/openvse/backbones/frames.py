"""Clips: a backbone of images sees each frame, and its mean feature is one local feature of the clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.backbones.base import Backbone, all_real
from openvse.backbones.efficientnet_lite0 import EfficientNetLite0
from openvse.backbones.frame_limit import FrameLimit
from openvse.backbones.random_view import random_view
from openvse.errors import RecipeError
from openvse.functional import masked_mean, pad
from openvse.media.videos import ClipSource, FrameSampling, SamplingMode, read_frames
from openvse.registry import Maker
from openvse.types import Features, Inputs

FRAMES_AT_ONCE = 128  # through a frozen backbone, whatever the size of the batch


class Frames(Backbone):
    """Frames of a clip as its local features: the mean of what another backbone yields for each (PVSE, section 3.1).

    An image is a clip of one frame. All frames of a clip get the same random view in training. A store holds up to
    ``stored_frames`` of each clip, of which ``num_frames`` are chosen anew each time, as from the file.

    Args:
        assets: a saved model's folder: what the inner backbone needs is read from it.
        backbone: sees the frames.
        sampling: which frames, see ``videos.FrameSampling``.
        num_frames: most frames of a clip that the model sees.
        fps: instants a second that ``run`` chooses from.
        stored_frames: most frames of a clip in a store (``run``; ``even`` stores ``num_frames``).

    Raises:
        RecipeError: a backbone that sees no images, or no frames at all.
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
        super().__init__(
            nn.ModuleDict({"backbone": image}),
            feature_dim=image.feature_dim,
            fingerprint=f"frames:{image.fingerprint}:{stored}",
            fine_tune=image.fine_tune,
        )
        most = num_frames if even else stored_frames
        self.stored_images = most * image.stored_images
        self.frame_limit = FrameLimit(num_frames, sampling)
        self.seen = FrameSampling(sampling, num_frames, fps)
        self.stored = FrameSampling(sampling, most, fps)

    @property
    def image(self) -> Backbone:
        """The backbone of the frames."""
        return cast(Backbone, self.backbone)

    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        """Turn one frame into pixels as the inner backbone wants them."""
        return self.image.preprocess(image)

    def read(
        self, source: ClipSource, generator: torch.Generator | None = None, *, to_store: bool = False
    ) -> Float[Tensor, "... 3 H W"]:
        """Decode the frames of a clip, ``[N, 3, H, W]``; the generator decides which, and their common view."""
        place = None if generator is None else float(torch.rand(1, generator=generator))
        frames = read_frames(source, self.stored if to_store else self.seen, place=place)
        if generator is None:
            return torch.stack([self.preprocess(frame) for frame in frames])
        view, pixels = generator.get_state(), []
        for frame in frames:
            generator.set_state(view)
            pixels.append(self.preprocess(random_view(frame, generator)))
        return torch.stack(pixels)

    def collate(self, items: Sequence[Float[Tensor, "... 3 H W"]]) -> Inputs:
        """Join clips of different lengths: ``[B, N, 3, H, W]`` and the mask of the real frames."""
        return pad(items)

    def see(self, inputs: Inputs) -> Features:
        """Return one feature for each frame; pixels without a mask, ``[B, 3, H, W]``, are clips of one frame."""
        if inputs.mask is None:
            return all_real(self._mean_features(inputs.values).unsqueeze(1))
        pixels = inputs.values.flatten(0, 1) if bool(inputs.mask.all()) else inputs.values[inputs.mask]
        seen = torch.cat([self._mean_features(some) for some in torch.split(pixels, FRAMES_AT_ONCE)])
        local = seen.new_zeros(*inputs.mask.shape, self.feature_dim)
        return Features(local.masked_scatter(inputs.mask.unsqueeze(-1), seen), inputs.mask)

    def save_assets(self, folder: Path) -> None:
        """Write what the inner backbone needs."""
        self.image.save_assets(folder)

    def _mean_features(self, pixels: Float[Tensor, "B ... 3 H W"]) -> Float[Tensor, "B C"]:
        seen = self.image(Inputs(pixels, None))
        return masked_mean(seen.local, seen.mask)
