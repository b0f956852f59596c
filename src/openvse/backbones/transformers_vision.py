"""Any vision backbone of the ``transformers`` library."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from openvse.backbones.base import all_real
from openvse.backbones.fine_tuning import TrainedBlocks, freeze_unreached, lora_of
from openvse.backbones.pretrained import (
    CheckpointBackbone,
    identify,
    load_backbone,
    load_processor,
    pixels_of,
    probing,
    saved_name,
)
from openvse.errors import ModelError
from openvse.types import Features, Inputs


class TransformersVision(CheckpointBackbone):
    """The patch tokens of a vision transformer, or the cells of a network's last feature map.

    ViT and DINOv2 give one feature per patch, without register tokens and, by default, without the class token. ResNet
    and ConvNeXt give one per cell of their last feature map. Of CLIP, SigLIP and similar models the vision tower is
    used, and the features are its last hidden states. The checkpoint's preprocessing is used, always with Pillow.

    Args:
        model: hub id, local folder, or ``package:NAME`` of an installed package.
        train_blocks: with ``fine_tune``, the number of the last blocks that train, together with the layers after them.
            The other blocks run without dropout and without a graph. None trains all blocks.
        lora: with ``fine_tune``, low-rank adapters that train instead of the weights, such as ``{rank: 8}``. See
            ``Lora``.
        image_size: the side in pixels of the square to which the whole image is resized. None follows the checkpoint's
            preprocessing (which may cut off the rim).
        class_token: whether to put the class token before the patches, where augmentation keeps it and the aggregator
            ``first_token`` finds it. A global vector is then made from it instead of the mean.
        round_crop: where the checkpoint's preprocessing cuts the middle out of an image, cut where torchvision does
            (OpenCLIP): one pixel further to the right or the bottom for some sizes.

    Raises:
        ModelError: the checkpoint cannot be loaded, does not yield local features from pixels only, or lacks the
            requested class token.
    """

    def __init__(
        self,
        *,
        model: str,
        assets: Path | None = None,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int | None = None,
        class_token: bool = False,
        train_blocks: int | None = None,
        lora: Mapping[str, Any] | None = None,
        round_crop: bool = False,
        exact_decode: bool | None = None,
    ) -> None:
        adapters = lora_of(lora, fine_tune=fine_tune, train_blocks=train_blocks)
        source = model if assets is None else str(assets)
        network: Any = load_backbone(source, weights=assets is None, tower="vision_model")
        processor = load_processor(source)
        pixels = pixels_of(processor, Image.new("RGB", (256, 256)), image_size)
        black = pixels.unsqueeze(0)
        with torch.set_grad_enabled(fine_tune), probing(source, "local features (as vision backbones do)"):
            probe = _local_features(network, black, class_token=class_token)
        if train_blocks is not None:
            TrainedBlocks(network, train_blocks).freeze_below(
                network, lambda: _local_features(network, black, class_token=class_token)
            )
        elif fine_tune:
            freeze_unreached(network, probe)
        checkpoint = identify(model, network.config) if assets is None else saved_name(assets)
        tokens = f"{probe.shape[1]}{' with class token' if class_token else ''}"
        super().__init__(
            network,
            feature_dim=probe.shape[-1],
            fingerprint=f"{checkpoint}:{pixels.shape[1]}x{pixels.shape[2]}:{tokens}{':rounded' * round_crop}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
            exact_decode=exact_decode,
        )
        self.lora = adapters
        self.checkpoint = checkpoint
        self.processor = processor
        self.image_size = image_size
        self.round_crop = round_crop
        self.class_token = class_token
        self.covers_image = image_size is not None  # a checkpoint's own preprocessing may crop

    def see(self, inputs: Inputs) -> Features:
        """Return patch tokens or cells, row by row, after the class token if ``class_token`` is set."""
        return all_real(_local_features(self.net, inputs.values, class_token=self.class_token))


def _local_features(
    network: Any, pixels: Float[Tensor, "B 3 H W"], *, class_token: bool
) -> Float[Tensor, "B N C"]:
    takes_any_size = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
    options = {"interpolate_pos_encoding": True} if takes_any_size else {}
    state: Tensor = network(pixel_values=pixels, **options).last_hidden_state
    if state.dim() == 4:
        state = state.flatten(2).transpose(1, 2)
        patches = state.shape[1]
    else:
        # Class and register tokens come first. Hierarchical transformers have none and fewer tokens.
        patch = network.config.patch_size
        patches = (pixels.shape[2] // patch) * (pixels.shape[3] // patch)
    if not class_token:
        return state[:, -patches:]
    if state.shape[1] <= patches:
        raise ModelError("this backbone has no class token: set class_token: false")
    return torch.cat([state[:, :1], state[:, -patches:]], dim=1)
