"""Clips: an image backbone sees each frame, and its mean feature is one local feature of the clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor

from openvse.encoders.base import ImageEncoder
from openvse.encoders.efficientnet_lite0 import EfficientNetLite0
from openvse.encoders.frame_limit import FrameLimit
from openvse.encoders.global_vector import PooledBy
from openvse.encoders.image_encoder import LocalFeatureEncoder
from openvse.encoders.size_augmentation import FeatureMode
from openvse.errors import RecipeError
from openvse.functional import masked_mean, pad
from openvse.media.videos import ClipSource, FrameSampling, SamplingMode, read_frames
from openvse.registry import Maker
from openvse.types import Inputs

FRAMES_AT_ONCE = 128  # through a frozen backbone, whatever the size of the batch


class Frames(LocalFeatureEncoder):
    """Frames of a clip as its local features: the mean of what an image backbone yields for each (PVSE, section 3.1).

    A picture is a clip of one frame. All frames of a clip get the same random view in training. A store holds up to
    ``stored_frames`` of each clip, of which ``num_frames`` are chosen anew each time, as from the file.

    Args:
        embed_dim: D.
        assets: a saved model's folder: what the backbone needs is read from it.
        backbone: the image encoder that sees the frames; its projection and pooling are not used.
        sampling: which frames, see ``videos.FrameSampling``.
        num_frames: most frames of a clip that the model sees.
        fps: instants a second that ``run`` chooses from.
        stored_frames: most frames of a clip in a store (``run``; ``even`` stores ``num_frames``).
        projection: a name of ``PROJECTIONS``.
        size_augmentation: what training hides: none, region or grid.
        augmentation_rate: probability that a frame is hidden.
        pooled: yield a global vector too; PIE-Net needs it.
        pooled_by: how: ``mean``, a linear layer of the mean frame, ``bigru``, its last states over them (PVSE), or
            ``bigru_last``, both directions at the last frame (PVSE's published models).

    Raises:
        RecipeError: a backbone that sees no pictures or yields a global vector itself, or no frames at all.
    """

    reads_videos = True

    def __init__(
        self,
        *,
        embed_dim: int,
        assets: Path | None = None,
        backbone: Maker[ImageEncoder] = EfficientNetLite0,
        sampling: SamplingMode = "run",
        num_frames: int = 8,
        fps: float = 8.0,
        stored_frames: int = 64,
        projection: str = "linear",
        size_augmentation: FeatureMode = "none",
        augmentation_rate: float = 0.2,
        pooled: bool = False,
        pooled_by: PooledBy = "mean",
    ) -> None:
        even = sampling == "even"
        if min(num_frames, fps) <= 0 or (stored_frames < num_frames and not even):
            raise RecipeError(
                f"num_frames is {num_frames}, fps {fps} and stored_frames {stored_frames}: the first two must be "
                f"above 0, and the third not below the first"
            )
        # The frames' own projection would come before the mean over cells and would have nothing to do.
        image = backbone(embed_dim=embed_dim, assets=assets, projection="none", size_augmentation="none")
        if image.fingerprint is None or image.reads_videos or image.gives_pooled:
            raise RecipeError(
                "backbone must be an image encoder that sees pictures, such as efficientnet_lite0 or "
                "transformers_vision, and pooled is an option of frames, not of its backbone"
            )
        self.stored_pictures = num_frames if even else stored_frames
        stored = f"even:{num_frames}" if even else f"{fps:g}fps:{stored_frames}"
        super().__init__(
            backbone=image,
            feature_dim=image.feature_dim,
            fingerprint=f"frames:{image.fingerprint}:{stored}",
            embed_dim=embed_dim,
            projection=projection,
            size_augmentation=size_augmentation,
            augmentation_rate=augmentation_rate,
            fine_tune=image.fine_tune,
            pooled=pooled,
            pooled_by=pooled_by,
            frame_limit=FrameLimit(num_frames, sampling),
        )
        self.seen = FrameSampling(sampling, num_frames, fps)
        self.stored = FrameSampling(sampling, self.stored_pictures, fps)

    @property
    def image(self) -> ImageEncoder:
        """The encoder of the frames."""
        return cast(ImageEncoder, self.backbone)

    def preprocess(self, image: Image, generator: torch.Generator | None = None) -> Float[Tensor, "3 H W"]:
        """Turn one frame into pixels as the backbone wants them."""
        return self.image.preprocess(image, generator)

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
            pixels.append(self.preprocess(frame, generator))
        return torch.stack(pixels)

    def collate(self, items: Sequence[Float[Tensor, "... 3 H W"]]) -> Inputs:
        """Join clips of different lengths: ``[B, N, 3, H, W]`` and the mask of the real frames."""
        return pad(items)

    def extract(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1 C"]:
        """Return the mean feature of each picture: each is a clip of one frame."""
        seen = self.image.raw_features(pixels)
        return masked_mean(seen.local, seen.mask).unsqueeze(1)

    def raw(self, inputs: Inputs) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
        """Return one feature a frame of pixels ``[B, N, 3, H, W]``, or what the base class does."""
        if inputs.mask is None or inputs.values.dim() != 5:
            return super().raw(inputs)
        pixels = inputs.values.flatten(0, 1) if bool(inputs.mask.all()) else inputs.values[inputs.mask]
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            parts = [self.extract(some) for some in torch.split(pixels, FRAMES_AT_ONCE)]
        seen = torch.cat(parts).squeeze(1)
        raw = seen.new_zeros(*inputs.mask.shape, self.feature_dim)
        return raw.masked_scatter(inputs.mask.unsqueeze(-1), seen), inputs.mask
