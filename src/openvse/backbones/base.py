"""The base of every backbone: an image or clip -> pixels -> local features, before any projection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from openvse.backbones.fine_tuning import checkpoint_blocks, set_backbone_mode
from openvse.backbones.frame_limit import FrameLimit
from openvse.backbones.random_view import random_view
from openvse.media.images import read_image
from openvse.media.videos import ClipSource
from openvse.registry import Configured
from openvse.types import Features, Inputs

# The attributes that hold the state of a module; a backbone shares them with its network.
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
    """A network that makes local features of images or clips, and the preprocessing that comes before it.

    A backbone of your own says how an image becomes pixels (``preprocess``) and pixels become features (``see``), and
    passes its network here; ``docs/recipes.md`` shows one. Weights keep the names that the network gives them: the
    backbone takes the place of its network among the modules, with the same parameters, buffers and children.

    Args:
        network: what runs, reachable as ``self.net``. It trains with ``fine_tune`` only, and the running statistics of
            its BatchNorm layers never change.
        feature_dim: C, the width of the features.
        fingerprint: which network, weights and preprocessing make the features; a store remembers it. None where there
            is no network, so that any store of the right width will do.
        fine_tune: train the network.
        gradient_checkpointing: while it trains, keep the activations between its blocks alone and compute the others
            again for the gradient: less memory, the same gradients, more time.

    Attributes:
        fingerprint: the argument, and whether the network trains: features stored before must not pass for features
            made afterwards.
        reads_videos: whether an item may be a clip, of which several frames are seen.
        stored_images: how many images an item is at most while its features are extracted for a store.
        gives_boxes: whether ``Features.boxes`` tells where in the image each feature lies.
        covers_image: whether the features are square cells over the whole image, row by row, perhaps behind a class
            token.
        any_size: its network takes images of any size: ``image_size`` may be set after it was made.
        image_size: side in pixels of the square that ``preprocess`` makes of an image; None where it has no such size.
        class_token: the first feature stands for the whole image: augmentation never hides it, and a global vector is
            made of it alone.
        frame_limit: chooses among the features where they are frames; None keeps all.
        usual_projection: a name of ``PROJECTIONS``, for recipes that name none.
        usual_augmentation: a name of ``AUGMENTATIONS``, likewise.

    Raises:
        ModelError: checkpointing a network that has no blocks.
    """

    usual_projection: ClassVar[str] = "linear"
    usual_augmentation: ClassVar[str] = "grid"
    reads_videos: bool = False
    stored_images: int = 1
    gives_boxes: bool = False
    covers_image: bool = False
    any_size: bool = False
    image_size: int | None = None
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
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.fingerprint = f"{fingerprint}:fine_tuned" if fine_tune else fingerprint
        self.fine_tune = fine_tune
        if not fine_tune:
            network.requires_grad_(False)
        elif gradient_checkpointing:
            checkpoint_blocks(network)
        # Not a child, whose name would come before those of the weights, but the same state under two modules.
        vars(self).update({name: vars(network)[name] for name in _STATE}, net=network)
        self.train(self.training)

    @abstractmethod
    def preprocess(self, image: Image) -> Float[Tensor, "... 3 H W"]:
        """Turn a decoded RGB image into pixels; into those of several images where the network sees parts of it."""

    @abstractmethod
    def see(self, inputs: Inputs) -> Features:
        """Return the local features of a batch that ``collate`` made; ``forward`` switches gradients on and off."""

    def forward(self, inputs: Inputs) -> Features:
        """Return the local features of pixels, which of them are real, and where they lie if that is known.

        Only a backbone that trains builds an autograd graph.
        """
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            return self.see(inputs)

    def read(
        self, source: ClipSource, generator: torch.Generator | None = None, *, to_store: bool = False
    ) -> Float[Tensor, "... 3 H W"]:
        """Decode an item to pixels: of an image, or of the frames of a clip.

        Args:
            source: what ``ClipSource`` allows; an image where the backbone reads no videos.
            generator: decides the random view of training; None gives the deterministic one.
            to_store: read everything that a feature store should hold, such as all frames from which training draws.

        Raises:
            BadImageError: the item cannot be used.
        """
        return self.preprocess(random_view(read_image(source), generator))

    def collate(self, items: Sequence[Float[Tensor, "... 3 H W"]]) -> Inputs:
        """Join what ``read`` returned into a batch."""
        return Inputs(torch.stack(tuple(items)), None)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode; a frozen network and all BatchNorm layers stay in evaluation mode."""
        self.training = mode and self.fine_tune
        set_backbone_mode(self.net, training=mode, fine_tune=self.fine_tune)
        return self

    def save_assets(self, folder: Path) -> None:
        """Write what the weights do not hold, such as the network's configuration, to a folder."""


def all_real(local: Float[Tensor, "B N C"]) -> Features:
    """Return features without padding."""
    return Features(local, torch.ones(local.shape[:2], dtype=torch.bool, device=local.device))


def cells(grid: Float[Tensor, "B C H W"]) -> Features:
    """Return the cells of a feature map, row by row."""
    return all_real(grid.flatten(2).transpose(1, 2))
