"""A limit on the frames of a clip with stored features, which samples them as a video reader would."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openvse.functional import compact
from openvse.media.videos import SamplingMode


@dataclass(frozen=True)
class FrameLimit:
    """Chooses among the local features of an item, which are in order of time (PVSE, section 3.5).

    If there are more than ``num_frames``, ``run`` takes a random run of consecutive ones in training. Otherwise, and
    always with ``even``, the middle ones of ``num_frames`` equal parts are kept, as in ``videos.FrameSampling``. The
    random place comes from PyTorch's global generator, as in all augmentation of stored features.

    Attributes:
        num_frames: the largest number of features that are kept.
        mode: run or even.
    """

    num_frames: int
    mode: SamplingMode = "run"

    def __call__(
        self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], *, random: bool
    ) -> tuple[Float[Tensor, "B M C"], Bool[Tensor, "B M"]]:
        """Return the chosen features, moved to the front, and their mask.

        Args:
            local: the features.
            mask: which of them are real.
            random: whether to choose at random, as in training.
        """
        lengths, most = mask.sum(dim=1, keepdim=True), self.num_frames
        if not torch.compiler.is_compiling() and int(lengths.max()) <= most:
            return local, mask
        order = mask.cumsum(dim=1) - 1  # of the real ones
        if random and self.mode == "run":
            places = (lengths - most + 1).clamp(min=1)
            first = (torch.rand(places.shape, device=mask.device) * places).long()
            chosen = (order >= first) & (order < first + most)
        else:
            middles = (2 * torch.arange(most, device=mask.device) + 1) * lengths // (2 * most)
            chosen = (order.unsqueeze(2) == middles.unsqueeze(1)).any(dim=2)
        return compact(local, mask & (chosen | (lengths <= most)))
