"""Grid features of residual networks, fine-tuned end to end: the CNNs of VSE-infinity, PVSE and VSE+2AD."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from openvse.backbones.base import Backbone, cells
from openvse.backbones.resnet_network import Form, ResNetNetwork, load_network_weights
from openvse.errors import RecipeError
from openvse.types import Features, Inputs

STRIDE = 32  # pixels per side of a grid cell
START_FILE = "start.txt"
CROP_SHARE = 0.875  # the share of the shorter side that is kept, as ImageNet networks are evaluated
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # red, green, blue, from 0 to 1
CAFFE_MEAN = (102.9801, 115.9465, 122.7717)  # blue, green, red, from 0 to 255


class ResNet(Backbone):
    """The last feature map of a ResNet or ResNeXt: one local feature per cell of 32 x 32 pixels.

    Args:
        assets: the folder of a saved model, which has the weights, so that ``weights`` is not read.
        weights: the file of initial weights, with torchvision's names (``.safetensors``, or ``.pth``, from which only
            tensors are read), or the detector's file that VSE-infinity publishes (``base`` and ``top``); without it,
            the weights are random.
        blocks: the number of blocks in each of the four stages; (3, 4, 23, 3) is ResNet-101, (3, 8, 36, 3) ResNet-152.
        bottleneck: whether a block has three convolutions; otherwise two, as in ResNet-18, (2, 2, 2, 2), and -34,
            (3, 4, 6, 3).
        form: ``torchvision``, or ``caffe``, the form of the bottom-up-attention detector.
        stem_dim: the channels of the first convolution; the features are 32 times as wide, 8 times without bottlenecks.
        inner_dim: the channels inside the first stage's bottlenecks; 256 with 32 groups is ResNeXt 32x8d.
        groups: the groups of the convolutions inside the bottlenecks.
        image_size: the side of the square in pixels.
        fit: how an image becomes a square: ``stretch`` resizes the whole image, ``crop`` resizes its shorter side to
            8/7 of ``image_size`` and cuts out the middle.
        pixels: ``imagenet`` standardises red, green and blue; ``caffe`` subtracts the mean from blue, green and red.
        fine_tune: whether to train the network; its BatchNorm statistics do not change.
        gradient_checkpointing: whether, in training, only the activations between the network's blocks are kept and the
            others are recomputed: less memory, the same gradients.

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
        form: Form = "torchvision",
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
                f"blocks {blocks}, stem_dim {stem_dim}, inner_dim {inner_dim} and groups {groups} must be at least "
                f"1, and groups divide inner_dim"
            )
        if form == "caffe" and not bottleneck:
            raise RecipeError(
                "form: caffe exists only with bottlenecks: leave bottleneck out, or take form: torchvision"
            )
        network = ResNetNetwork(
            blocks, bottleneck=bottleneck, form=form, stem_dim=stem_dim, inner_dim=inner_dim, groups=groups
        )
        start = _start(network, weights) if assets is None else _saved_start(assets)
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
        square = (_cropped if self.fit == "crop" else _stretched)(image, self.image_size)
        if self.pixels == "caffe":
            return square.flip(0) - torch.tensor(CAFFE_MEAN).view(3, 1, 1)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return (square / 255 - mean) / std

    def see(self, inputs: Inputs) -> Features:
        """Return the cells, row by row."""
        return cells(self.net(inputs.values))

    def save_assets(self, folder: Path) -> None:
        """Write the name of the initial weights, so that features made with the same weights still fit."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / START_FILE).write_text(f"{self.start}\n", encoding="utf-8")


def _start(network: ResNetNetwork, weights: str | None) -> str:
    """Load the initial weights of a network, and return a name of their content."""
    if weights is None:
        return "random"
    load_network_weights(network, Path(weights))
    with Path(weights).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _saved_start(assets: Path) -> str:
    path = assets / START_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else "unknown"


def _stretched(image: Image.Image, size: int) -> Float[Tensor, "3 H W"]:
    """Resize without antialiasing, as OpenCV does: the released models saw images that were shrunk this way."""
    return F.interpolate(
        _planes(image).unsqueeze(0), size=(size, size), mode="bilinear", align_corners=False
    )[0]


def _cropped(image: Image.Image, size: int) -> Float[Tensor, "3 H W"]:
    shorter = round(size / CROP_SHARE)
    width, height = (int(shorter * side / min(image.size)) for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return _planes(resized.crop((left, top, left + size, top + size)))


def _planes(image: Image.Image) -> Float[Tensor, "3 H W"]:
    return torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)
