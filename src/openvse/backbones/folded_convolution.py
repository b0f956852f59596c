"""Convolution, BatchNorm with fixed statistics and ReLU6 as one step, with gradients that are fast on a CPU.

With fixed statistics BatchNorm is a linear map of each channel, so it can be folded into the weights of the convolution
before it. The folded weights are computed from the parameters in every step, by autograd. So the gradients of the
convolution's weights and of BatchNorm's scale and shift are exact, and need no pass over the activations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

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
        made: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            pixels,
            self.weight,
            self.bias,
            shortcut,
            self.cast_weight,
            self.cast_bias,
            self.stride,
            self.clipped,
        )
        return made


def fold(
    convolution: nn.Conv2d, norm: nn.BatchNorm2d, *, clipped: bool, dtype: torch.dtype
) -> FoldedConvolution:
    """Fold BatchNorm's statistics, scale and shift into a convolution without a bias."""
    mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    weight = convolution.weight * scale[:, None, None, None]
    if weight.shape[-1] > 1:
        weight = weight.flip(2, 3)
    bias = norm.bias - mean * scale
    return FoldedConvolution(
        weight,
        bias,
        weight.detach().to(dtype),
        bias.detach().to(dtype),
        int(convolution.stride[0]),
        clipped,
    )


class _Convolve(torch.autograd.Function):
    """A convolution with an odd kernel and ReLU6 or a shortcut. It keeps its input, and its output if ReLU6 follows."""

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
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
        to_pixels, to_weight, to_bias, to_shortcut = ctx.needs_input_grad[:4]
        through = gradient
        if made is not None:
            through = torch.ops.aten.hardtanh_backward(gradient, made, 0.0, HIGHEST)
        return (
            _pixel_gradient(through, pixels, weight, ctx.stride) if to_pixels else None,
            _weight_gradient(through, pixels, weight, ctx.stride).to(ctx.dtype) if to_weight else None,
            through.sum((0, 2, 3)).to(ctx.dtype) if to_bias else None,
            gradient if to_shortcut else None,
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
        gradient,
        pixels,
        weight,
        None,
        [stride] * 2,
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        groups,
        [*wanted, False],
    )
    one: Tensor = gradients[0] if wanted[0] else gradients[1]
    return one
