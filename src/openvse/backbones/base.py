"""The base of every backbone, which turns an image or clip into pixels, and pixels into unprojected local features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NoReturn, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from PIL.Image import Image, Transpose
from torch import Tensor, nn

from openvse.backbones.fine_tuning import checkpoint_blocks, set_backbone_mode
from openvse.errors import ModelError, RecipeError
from openvse.functional import compact, masked_mean
from openvse.kernels import is_traced
from openvse.media.images import SMALLER_JPEGS, read_image, within_memory
from openvse.media.segments import ClipSegment
from openvse.media.videos import ClipSource, SamplingMode, read_poster
from openvse.registry import Configured
from openvse.types import Features, Inputs, moved, on_cpu

_SMALLEST_VIEW = 0.6  # of the image's sides
# The attributes that hold the state of a module, which a backbone shares with its network.
_STATE = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class Backbone(Configured, nn.Module, ABC):
    """A network that makes local features of images or clips, together with its preprocessing.

    Your own backbone defines how an image becomes pixels (``preprocess``) and how pixels become features (``see``), and
    passes its network to this constructor (see ``docs/backbones.md``). Weights keep the names that the network gives
    them, because the backbone replaces its network among the modules, with the same parameters, buffers and children. A
    backbone with an argument ``assets`` gets the folder of a saved model, and reads its files instead of others.

    Args:
        network: the network, available as ``self.net``. It trains only with ``fine_tune``, and the running statistics
            of its BatchNorm layers never change.
        feature_dim: C, the width of the features.
        fingerprint: the identity of network, weights and preprocessing, which a store records. None if there is no
            network. Any store of the right width is then accepted.
        fine_tune: whether to train the network.
        gradient_checkpointing: whether training keeps only the activations between the network's blocks and recomputes
            the others for the gradient: less memory, the same gradients, more time.
        exact_decode: whether a JPEG is decoded at full size, and not at 1/2, 1/4 or 1/8 where both sides stay at least
            twice as long as the network needs. None decodes at full size for stores, training and evaluation, and
            smaller elsewhere, as for an index and for queries. With False, ``fingerprint`` records it.

    Attributes:
        fingerprint: the argument, and whether the network trains, so that features stored before training are not
            mistaken for features of the trained network.
        reads_images: whether there is a network, so that features need no store.
        reads_videos: whether an item may be a clip, of which several frames are seen.
        stored_images: the largest number of images per item while its features are extracted for a store.
        gives_boxes: whether ``Features.boxes`` holds the position of each feature in the image.
        covers_image: whether features are square cells over the whole image, row by row, perhaps after a class token.
        any_size: whether the network takes images of any size, so that ``image_size`` may be changed later.
        image_size: the side in pixels of the square that ``preprocess`` makes from an image. None without one.
        shorter_side: the length in pixels to which ``preprocess`` shrinks the shorter side of a large image, with
            antialiasing. None if it is not known. Every file is then decoded at full size.
        middle: how many of the last columns of the features come from the middle of the network (``EfficientNetLite``).
        class_token: whether the first feature represents the whole image. Augmentation then never hides it, and a
            global vector is made only from it.
        frame_limit: the object that chooses among features that are frames. None keeps all.
        usual_projection: the name in ``PROJECTIONS`` for recipes that do not name a projection.
        usual_augmentation: the name in ``AUGMENTATIONS`` for recipes that do not name an augmentation.

    Raises:
        ModelError: ``gradient_checkpointing`` is set for a network without blocks.
    """

    usual_projection: ClassVar[str] = "linear"
    usual_augmentation: ClassVar[str] = "grid"
    reads_images: ClassVar[bool] = True
    reads_videos: bool = False
    stored_images: int = 1
    gives_boxes: bool = False
    covers_image: bool = False
    any_size: bool = False
    image_size: int | None = None
    exact_decode: bool | None = None
    middle: int = 0
    class_token: bool = False
    frame_limit: FrameLimit | None = None
    net: nn.Module

    def __init__(
        self,
        network: nn.Module,
        *,
        feature_dim: int,
        fingerprint: str | None,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        exact_decode: bool | None = None,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.exact_decode = exact_decode
        if fingerprint is not None and exact_decode is False:
            fingerprint = fingerprint + SMALLER_JPEGS
        self.fingerprint = f"{fingerprint}:fine_tuned" if fine_tune else fingerprint
        self.fine_tune = fine_tune
        if not fine_tune:
            network.requires_grad_(False)
        elif gradient_checkpointing:
            checkpoint_blocks(network)
        # The network is not a child, which would prefix its name to its weights. Instead, two modules share the state.
        vars(self).update({name: vars(network)[name] for name in _STATE}, net=network)
        self.train(self.training)

    @property
    def shorter_side(self) -> int | None:
        """See the class."""
        return None

    @abstractmethod
    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        """Turn a decoded RGB image into pixels, or into several images' pixels if the network sees parts of it."""

    @abstractmethod
    def see(self, inputs: Inputs) -> Features:
        """Return the local features of a batch from ``collate``. ``forward`` switches gradients on and off."""

    def levels(self, image: Image) -> Shaped[Tensor, "... 3 H W"]:
        """Return what ``read`` sends to a GPU: ``preprocess``, or levels ``uint8`` that ``forward`` makes pixels of."""
        return self.preprocess(image)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    def forward(self, inputs: Inputs) -> Features:
        """Return the local features of pixels with their mask, and their boxes if known.

        Only a backbone that trains builds an autograd graph.
        """
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            return self.see(inputs)

    def read(
        self,
        source: ClipSource,
        generator: torch.Generator | None = None,
        *,
        to_store: bool = False,
        exact: bool = True,
    ) -> Shaped[Tensor, "... 3 H W"]:
        """Decode an item, an image or the frames of a clip, to pixels, or for a GPU to ``levels``.

        Args:
            source: a ``ClipSource``. Unless it reads videos, an image, or a part of a clip, whose middle frame is read.
            generator: the generator of the random view in training. None gives the deterministic view.
            to_store: whether to read all that a feature store should hold, such as all frames that training draws from.
            exact: whether a JPEG is decoded at full size if ``exact_decode`` is None.

        Raises:
            BadImageError: the item cannot be used.
        """
        if isinstance(source, ClipSegment):
            image = read_poster(source)
        else:
            image = read_image(source, shorter_side=self.decoded_for(generator, exact=exact))
        with within_memory(source):
            return self.prepared(random_view(image, generator))

    def prepared(self, image: Image) -> Shaped[Tensor, "... 3 H W"]:
        """Return the pixels of an image, or for a GPU its ``levels``."""
        return self.preprocess(image) if self.device.type == "cpu" else self.levels(image)

    def decoded_for(self, generator: torch.Generator | None, *, exact: bool) -> int | None:
        """Return the ``shorter_side`` for which an item is decoded. None decodes at full size, as for random views."""
        whole = exact if self.exact_decode is None else self.exact_decode
        return None if whole or generator is not None else self.shorter_side

    def collate(self, items: Sequence[Shaped[Tensor, "... 3 H W"]]) -> Inputs:
        """Join the results of ``read`` into a batch."""
        return Inputs(torch.stack(tuple(items)), None)

    def train(self, mode: bool = True) -> Backbone:
        """Set training or evaluation mode. A frozen network and all BatchNorm layers stay in evaluation mode."""
        self.training = mode and self.fine_tune
        set_backbone_mode(self.net, training=mode, fine_tune=self.fine_tune)
        return self

    def save_assets(self, folder: Path) -> None:
        """Write the files that the network needs besides its weights, such as its configuration, to a folder."""

    def classifier(self) -> nn.Linear | None:
        """Return the map from a local feature to the classes that the network was trained to tell apart, if known."""
        return None


class LevelBackbone(Backbone):
    """A backbone that resizes an image and then replaces each level, 0 to 255, by a number that its colour decides.

    A subclass defines ``levels``, and calls ``standardise`` after the constructor of ``Backbone``. For a GPU, the
    replacement is the network's first step, so that a pixel is a byte until then. The numbers are the same everywhere.
    """

    pixel_levels: Float[Tensor, "3 256"] | None

    def standardise(self, numbers: Float[Tensor, "3 256"] | None) -> None:
        """Set the number of each level. None is for ``levels`` that returns pixels."""
        self.register_buffer("pixel_levels", numbers, persistent=False)

    def preprocess(self, image: Image) -> Float[Tensor, "3 H W"]:
        return self._pixels(self.levels(image))

    def forward(self, inputs: Inputs) -> Features:
        return super().forward(replace(inputs, values=self._pixels(inputs.values)))

    def _pixels(self, made: Shaped[Tensor, "*b 3 H W"]) -> Float[Tensor, "*b 3 H W"]:
        numbers = self.pixel_levels
        return made if numbers is None or made.dtype != torch.uint8 else of_levels(made, numbers)


ALL_LEVELS = torch.arange(256.0).expand(3, 256)


def levels_of(image: Image) -> UInt8[Tensor, "3 H W"]:
    """Return the levels of red, green and blue."""
    return torch.from_numpy(np.stack([np.asarray(colour) for colour in image.split()]))


def of_levels(levels: UInt8[Tensor, "... 3 H W"], numbers: Float[Tensor, "3 256"]) -> Float[Tensor, "... 3 H W"]:
    """Replace each level of each colour by its number."""
    starts = torch.arange(0, numbers.numel(), 256, dtype=torch.int32, device=levels.device).view(-1, 1, 1)
    return numbers.flatten().index_select(0, (levels + starts).flatten()).view(levels.shape)


class NestedBackbone(Backbone):
    """Shows parts of an item (windows, frames) to an inner backbone, and takes the mean feature of each."""

    def __init__(self, inner: Backbone, *, fingerprint: str) -> None:
        super().__init__(
            nn.ModuleDict({"backbone": inner}),
            feature_dim=inner.feature_dim,
            fingerprint=fingerprint,
            fine_tune=inner.fine_tune,
        )
        self.middle = inner.middle
        self.exact_decode = inner.exact_decode  # the inner fingerprint records it already

    @property
    def inner(self) -> Backbone:
        """The backbone that sees the parts."""
        return cast(Backbone, self.backbone)

    @property
    def shorter_side(self) -> int | None:
        """The ``shorter_side`` of the inner backbone, which sees whole frames."""
        return self.inner.shorter_side

    def mean_features(self, pixels: Float[Tensor, "B ... 3 H W"]) -> Float[Tensor, "B C"]:
        """Return the mean feature that the inner backbone yields for each part."""
        seen = self.inner(Inputs(pixels, None))
        return masked_mean(seen.local, seen.mask)

    def save_assets(self, folder: Path) -> None:
        self.inner.save_assets(folder)

    def classifier(self) -> nn.Linear | None:
        return self.inner.classifier()


def all_real(local: Float[Tensor, "B N C"]) -> Features:
    """Return features without padding."""
    return Features(local, torch.ones(local.shape[:2], dtype=torch.bool, device=local.device))


def cells(grid: Float[Tensor, "B C H W"]) -> Features:
    """Return the cells of a feature map, row by row."""
    return all_real(grid.flatten(2).transpose(1, 2))


def cell_boxes(side: int, device: torch.device | None = None) -> Float[Tensor, "N 4"]:
    """Return left, top, right and bottom of the cells of a square map as fractions of the image, row by row."""
    starts = torch.arange(side, device=device) / side
    top, left = torch.meshgrid(starts, starts, indexing="ij")
    return torch.stack([left, top, left + 1 / side, top + 1 / side], dim=-1).flatten(0, 1)


@dataclass(frozen=True)
class FrameLimit:
    """Chooses among the local features of an item, which are in order of time (PVSE, section 3.5).

    If there are more than ``num_frames``, ``run`` takes a random run of consecutive ones in training. Otherwise, and
    always with ``even``, the middle ones of ``num_frames`` equal parts are kept, as in ``videos.FrameSampling``. The
    random place comes from PyTorch's global generator, as in all augmentation of stored features.
    """

    num_frames: int
    mode: SamplingMode = "run"

    def __call__(
        self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], *, random: bool
    ) -> tuple[Float[Tensor, "B M C"], Bool[Tensor, "B M"]]:
        """Return the chosen features, moved to the front, and their mask."""
        device, mask = mask.device, on_cpu(mask)
        lengths, most = mask.sum(dim=1, keepdim=True), self.num_frames
        if not is_traced() and int(lengths.max()) <= most:
            return local, moved(mask, device)
        order = mask.cumsum(dim=1) - 1  # of the real features
        if random and self.mode == "run":
            places = (lengths - most + 1).clamp(min=1)
            first = (torch.rand(places.shape) * places).long()
            chosen = (order >= first) & (order < first + most)
        else:
            middles = (2 * torch.arange(most, device=mask.device) + 1) * lengths // (2 * most)
            chosen = (order.unsqueeze(2) == middles.unsqueeze(1)).any(dim=2)
        return compact(local, moved(mask & (chosen | (lengths <= most)), device))


def random_view(image: Image, generator: torch.Generator | None) -> Image:
    """Cut out a random window with the image's aspect ratio, and mirror it half of the time (VSE-infinity, 4.1).

    The same state of the generator gives the same view. None, outside training, gives the whole image.
    """
    if generator is None:
        return image
    share, left, top, mirror = torch.rand(4, generator=generator).tolist()
    share = _SMALLEST_VIEW + (1 - _SMALLEST_VIEW) * share
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    x, y = int(left * (image.width - width + 1)), int(top * (image.height - height + 1))
    view = image.crop((x, y, x + width, y + height))
    return view.transpose(Transpose.FLIP_LEFT_RIGHT) if mirror < 0.5 else view


_NO_NETWORK = "encoder 'precomputed' cannot read images: give stored features, or use an encoder with a backbone"


class Precomputed(Backbone):
    """Has no network: features come from a store. Default projection and augmentation are VSE-infinity's for regions.

    Args:
        feature_dim: C, the width of the stored features (2048 for bottom-up attention).
        num_frames: the largest number of features of a clip that the model sees, if the features are frames in order of
            time: a random run of them in training, otherwise evenly spread ones (PVSE). None takes all.
        made_by: the only backbone whose features are accepted, as their store names it. None accepts any of this width.

    Raises:
        RecipeError: ``num_frames`` is below 1.
    """

    reads_images: ClassVar[bool] = False
    usual_projection: ClassVar[str] = "residual_mlp"
    usual_augmentation: ClassVar[str] = "region"

    def __init__(self, *, feature_dim: int, num_frames: int | None = None, made_by: str | None = None) -> None:
        if num_frames is not None and num_frames < 1:
            raise RecipeError(f"num_frames is {num_frames}: give 1 or more, or none to take all frames")
        super().__init__(nn.Identity(), feature_dim=feature_dim, fingerprint=made_by)
        self.frame_limit = None if num_frames is None else FrameLimit(num_frames)

    def preprocess(self, image: Image) -> NoReturn:
        raise ModelError(_NO_NETWORK)

    def see(self, inputs: Inputs) -> NoReturn:
        raise ModelError(_NO_NETWORK)
