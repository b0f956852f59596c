"""Grid features of residual networks, fine-tuned end to end: the CNNs of VSE-infinity, PVSE and VSE+2AD."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.backbones.base import Backbone, cells
from openvse.errors import ModelError, RecipeError, message_of
from openvse.files import read_text
from openvse.media.resizing import resized_middle
from openvse.types import Features, Inputs

WeightForm: TypeAlias = Literal["torchvision", "caffe"]
EXPANSION = 4  # the width of a bottleneck block's output, relative to a basic block's
STRIDE = 32  # pixels per side of a grid cell
START_FILE = "start.txt"
CROP_SHARE = 0.875  # the share of the shorter side that is kept in the evaluation of ImageNet networks
_LARGE = 16_000_000  # pixels of an image of which only a part becomes floating-point numbers
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # red, green, blue, from 0 to 1
CAFFE_MEAN = (102.9801, 115.9465, 122.7717)  # blue, green, red, from 0 to 255


class ResNet(Backbone):
    """The last feature map of a ResNet or ResNeXt: one local feature per cell of 32 x 32 pixels.

    Args:
        weights: the file of initial weights, with torchvision's names (``.safetensors``, or ``.pth``, from which only
            tensors are read), or the detector's file that VSE-infinity publishes (``base`` and ``top``). Without it,
            the weights are random.
        blocks: the number of blocks in each of the four stages. (3, 4, 23, 3) is ResNet-101, (3, 8, 36, 3) ResNet-152.
        bottleneck: whether a block has three convolutions. Otherwise two, as in ResNet-18, (2, 2, 2, 2), and -34, (3,
            4, 6, 3).
        form: ``torchvision``, or ``caffe``, the form of the bottom-up-attention detector.
        stem_dim: the channels of the first convolution. The features are 32 times as wide, 8 times without bottlenecks.
        inner_dim: the channels inside the first stage's bottlenecks. 256 with 32 groups is ResNeXt 32x8d.
        groups: the groups of the convolutions inside the bottlenecks.
        image_size: the side of the square in pixels.
        fit: how an image becomes a square: ``stretch`` resizes the whole image, ``crop`` resizes its shorter side to
            8/7 of ``image_size`` and cuts out the middle.
        pixels: ``imagenet`` standardises red, green and blue. ``caffe`` subtracts the mean from blue, green and red.

    Raises:
        ModelError: the weights cannot be read, or belong to a network of other sizes.
        RecipeError: a size, width or number is below 1, the groups do not divide the width, images are smaller than a
            cell, or the Caffe form has no bottlenecks.
    """

    any_size = True
    image_size: int

    def __init__(
        self,
        *,
        assets: Path | None = None,
        weights: str | None = None,
        blocks: tuple[int, int, int, int] = (3, 4, 23, 3),
        bottleneck: bool = True,
        form: WeightForm = "torchvision",
        stem_dim: int = 64,
        inner_dim: int = 64,
        groups: int = 1,
        image_size: int = 224,
        fit: Literal["stretch", "crop"] = "stretch",
        pixels: Literal["imagenet", "caffe"] = "imagenet",
        fine_tune: bool = True,
        gradient_checkpointing: bool = False,
    ) -> None:
        if image_size < STRIDE:
            raise RecipeError(f"image_size is {image_size} pixels: give {STRIDE} or more")
        if min(*blocks, stem_dim, inner_dim, groups) < 1 or inner_dim % groups:
            raise RecipeError(
                f"blocks {blocks}, stem_dim {stem_dim}, inner_dim {inner_dim} and groups {groups}: give at least 1 "
                f"for each, and groups that divide inner_dim"
            )
        if form == "caffe" and not bottleneck:
            raise RecipeError("form: caffe has only bottlenecks: leave bottleneck out, or take form: torchvision")
        network = ResNetNetwork(
            blocks, bottleneck=bottleneck, form=form, stem_dim=stem_dim, inner_dim=inner_dim, groups=groups
        )
        start = "random"
        if assets is not None:
            saved = assets / START_FILE
            start = read_text(saved).strip() if saved.is_file() else "unknown"
        elif weights is not None:
            load_network_weights(network, Path(weights))
            with Path(weights).open("rb") as file:
                start = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        layout = "-".join(map(str, (*blocks, bottleneck, form, stem_dim, inner_dim, groups)))
        super().__init__(
            network,
            feature_dim=network.output_dim,
            fingerprint=f"resnet@{start}:{layout}:{pixels}:{fit}:{image_size}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.start = start
        self.image_size = image_size
        self.fit = fit
        self.covers_image = fit == "stretch"
        self.pixels = pixels

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        """Make the image a square of standardised pixels."""
        size = self.image_size
        if self.fit == "crop":
            shorter = round(size / CROP_SHARE)
            square = _planes(resized_middle(image, shorter, (size, size), Image.Resampling.BILINEAR, rounds=True))
        else:
            square = _stretched(image, size)
        if self.pixels == "caffe":
            return square.flip(0) - torch.tensor(CAFFE_MEAN).view(3, 1, 1)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return (square / 255 - mean) / std

    def see(self, inputs: Inputs) -> Features:
        return cells(self.net(inputs.values))

    def save_assets(self, folder: Path) -> None:
        """Write the name of the initial weights, so that features made with the same weights still fit."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / START_FILE).write_text(f"{self.start}\n", encoding="utf-8")


def _stretched(image: Image.Image, size: int) -> Float[Tensor, "3 H W"]:
    """Resize without antialiasing, as OpenCV does, because the released models saw images shrunk this way."""
    if image.width * image.height <= _LARGE:
        whole = _planes(image).unsqueeze(0)
        return F.interpolate(whole, size=(size, size), mode="bilinear", align_corners=False)[0]
    # The same for a large image, of which only the pixels that are read become floating-point numbers.
    values = np.asarray(image)
    above, below, down = _neighbours(image.height, size)
    before, after, along = _neighbours(image.width, size)

    def row(places: Int[np.ndarray, "H"]) -> Float[np.ndarray, "H W 3"]:
        left, right = (values[places][:, each] * np.float32(1) for each in (before, after))
        return np.asarray(left + (right - left) * along[:, None])

    top = row(above)
    return torch.from_numpy(top + (row(below) - top) * down[:, None, None]).permute(2, 0, 1)


def _neighbours(length: int, size: int) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Return the pixels of a side on both sides of each pixel of the resized side, and the share of the second."""
    at = ((np.arange(size) + 0.5) * length / size - 0.5).clip(min=0)
    first = at.astype(np.int64)
    return first, np.minimum(first + 1, length - 1), (at - first).astype(np.float32)


def _planes(image: Image.Image) -> Float[Tensor, "3 H W"]:
    return torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)


class ResNetNetwork(nn.Module):
    """Stem and four stages. The weights have torchvision's names, so that its checkpoints fit.

    The Caffe form, used by the bottom-up-attention detector, halves the resolution in the first convolution of a block
    instead of the second, and its pooling starts at the image's corner without padding.
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        *,
        bottleneck: bool = True,
        form: WeightForm = "torchvision",
        stem_dim: int = 64,
        inner_dim: int = 64,
        groups: int = 1,
    ) -> None:
        super().__init__()
        caffe = form == "caffe"
        self.conv1 = nn.Conv2d(3, stem_dim, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem_dim)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=0 if caffe else 1, ceil_mode=caffe)
        width = stem_dim
        for stage, count in enumerate(blocks):
            output_dim = stem_dim * (EXPANSION if bottleneck else 1) * 2**stage
            layers = nn.ModuleList()
            for position in range(count):
                stride = 2 if stage > 0 and position == 0 else 1
                inner = inner_dim * 2**stage
                layers.append(Block(width, inner, output_dim, stride, groups, bottleneck=bottleneck, caffe=caffe))
                width = output_dim
            self.add_module(f"layer{stage + 1}", layers)
        self.output_dim = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Return the last feature map."""
        cells: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(pixels))))
        for stage in range(1, 5):
            for block in cast(nn.ModuleList, self.get_submodule(f"layer{stage}")):
                cells = block(cells)
        return cells


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, or 1x1, 3x3 and 1x1 convolutions (He et al., CVPR 2016, Fig. 2 and 5)."""

    def __init__(
        self,
        input_dim: int,
        inner_dim: int,
        output_dim: int,
        stride: int,
        groups: int,
        *,
        bottleneck: bool,
        caffe: bool,
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if caffe or not bottleneck else (1, stride)
        if not bottleneck:
            inner_dim, groups = output_dim, 1
        kernel = 1 if bottleneck else 3
        self.conv1 = nn.Conv2d(input_dim, inner_dim, kernel, stride=first, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(inner_dim)
        self.conv2 = nn.Conv2d(inner_dim, inner_dim, 3, stride=second, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner_dim)
        if bottleneck:
            self.conv3 = nn.Conv2d(inner_dim, output_dim, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(output_dim)
        self.bottleneck = bottleneck
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None  # fits the input to the output if their shapes differ
        if stride > 1 or input_dim != output_dim:
            fitted = nn.Conv2d(input_dim, output_dim, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(fitted, nn.BatchNorm2d(output_dim))

    def forward(self, cells: Float[Tensor, "B C H W"]) -> Float[Tensor, "B c h w"]:
        """Add the output of the convolutions to the block's input."""
        shortcut = cells if self.downsample is None else self.downsample(cells)
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(cells)))))
        if self.bottleneck:
            inner = self.bn3(self.conv3(self.relu(inner)))
        return cast(Tensor, self.relu(inner + shortcut))


def load_network_weights(network: ResNetNetwork, path: Path) -> None:
    """Load weights with torchvision's names, or the detector's, in two parts that number the layers. No pickle runs."""
    try:
        read: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # damaged bytes fail in many ways
        raise ModelError(
            f"weights {path} cannot be read ({message_of(error, 100)}): give a .safetensors or .pth file of tensors"
        ) from error
    weights = _unnumbered(read) if isinstance(read, dict) and {"base", "top"} <= read.keys() else read
    wanted = network.state_dict()
    tensors = {n: w for n, w in (weights if isinstance(weights, dict) else {}).items() if n in wanted}
    learned = [n for n in wanted if not n.endswith("num_batches_tracked")]
    if wrong := [n for n in learned if n not in tensors or tensors[n].shape != wanted[n].shape]:
        raise ModelError(
            f"weights {path} do not fit: {len(wrong)} of {len(wanted)} are missing or of another shape, such as "
            f"{wrong[0]}: set blocks, stem_dim, inner_dim and groups to the sizes of the file's network"
        )
    network.load_state_dict(tensors, strict=False)


def _unnumbered(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Name the weights of the detector's file. One part numbers the stem and three stages, another the last stage."""
    names = {"base.0": "conv1", "base.1": "bn1", "base.4": "layer1", "base.5": "layer2", "base.6": "layer3"}
    names["top.0"] = "layer4"
    result = {}
    for part in ("base", "top"):
        for name, weight in parts[part].items():
            number, _, rest = name.partition(".")
            result[f"{names.get(f'{part}.{number}', part)}.{rest}"] = weight
    return result
