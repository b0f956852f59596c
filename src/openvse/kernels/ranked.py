"""Sets sorted in each dimension, and their sum with weights by rank: no slower than taking the maximum.

On a CPU a kernel in C does it (``ranked_c``), and on a GPU one in Triton, if it is asked for (``ranked_triton``). Both
are given sets whose elements have their numbers side by side, masks as bytes, and weights in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.kernels import ranked_c
from openvse.kernels.build import load_triton


def is_usable(local: Tensor) -> bool:
    """Return whether there is a kernel that can sort these sets, and nothing is being compiled or traced."""
    return (
        not torch.compiler.is_compiling()  # first: a comparison of a size would limit the sizes of a program
        and local.numel() > 0
        and type(local) in (Tensor, nn.Parameter)  # neither fake nor functional, as while a graph is traced
        and torch._C._get_tracing_state() is None
        and (kernel := _kernel(local.device)) is not None
        and kernel.can_sort(local)
    )


def _kernel(device: torch.device) -> Any:
    """Return the module that sorts on a device, if there is one."""
    if device.type == "cpu":
        return ranked_c
    return load_triton("ranked_triton") if device.type == "cuda" else None


def sort_elements(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
    """Sort the elements in each dimension, largest first; padding comes last and is 0.

    Args:
        local: sets for which ``is_usable`` is True.
        mask: which elements are real, in any places.
    """
    if torch.is_grad_enabled() and local.requires_grad:
        sorted_elements: Tensor = _Sort.apply(local, mask)  # type: ignore[no-untyped-call]
    else:
        sorted_elements = _kernel(local.device).sort(_with_rows(local), _bytes(mask), None)
    return sorted_elements


def sum_ranked(
    local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], weights: Float[Tensor, "B M"]
) -> Float[Tensor, "B L"]:
    """Sum the elements with weights by their rank in each dimension, in single precision.

    Args:
        local: sets for which ``is_usable`` is True.
        mask: which elements are real, in any places.
        weights: the weight of the largest element, of the second largest, and so on; M is at least the size of the
            largest set.

    Raises:
        ValueError: there are fewer weights than elements.
    """
    if weights.shape[1] < mask.shape[1] and weights.shape[1] < int(mask.sum(dim=1).max()):
        raise ValueError(
            f"{weights.shape[1]} weights are given for sets of up to {int(mask.sum(dim=1).max())} elements"
        )
    if torch.is_grad_enabled() and (local.requires_grad or weights.requires_grad):
        summed: Tensor = _Sum.apply(local, mask, weights)  # type: ignore[no-untyped-call]
    else:
        single = weights.float().contiguous()
        summed = _kernel(local.device).sum_by_rank(_with_rows(local), _bytes(mask), single, None)
    return summed


class _Sum(torch.autograd.Function):
    """``sum_ranked`` with its gradient, which needs the elements and one byte for each of them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        """Sum, and keep which element has which rank."""
        given = _with_rows(local), _bytes(mask), weights.float().contiguous(), _byte_for_each(local)
        ctx.save_for_backward(*given)
        ctx.kernel, ctx.kind = _kernel(local.device), weights.dtype
        summed: Tensor = ctx.kernel.sum_by_rank(*given)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, Tensor]:
        """Give each element the gradient of its rank, and each weight that of its element."""
        of_local, of_weights = ctx.kernel.sum_gradients(*ctx.saved_tensors, given.contiguous())
        return of_local, None, of_weights.to(ctx.kind)


class _Sort(torch.autograd.Function):
    """``sort_elements`` with its gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor) -> Tensor:
        """Sort, and keep which element has which rank."""
        real, kept = _bytes(mask), _byte_for_each(local)
        ctx.save_for_backward(real, kept)
        ctx.kernel = _kernel(local.device)
        rows: Tensor = ctx.kernel.sort(_with_rows(local), real, kept)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        """Give each element the gradient of its rank."""
        return ctx.kernel.sort_gradient(*ctx.saved_tensors, given.contiguous()), None


def _with_rows(local: Float[Tensor, "B N L"]) -> Float[Tensor, "B N L"]:
    """Return the sets with each element's numbers side by side: as they are, or a copy."""
    return local if local.stride(2) == 1 else local.contiguous()


def _bytes(mask: Bool[Tensor, "B N"]) -> UInt8[Tensor, "B N"]:
    return mask.contiguous().view(torch.uint8)


def _byte_for_each(local: Float[Tensor, "B N L"]) -> UInt8[Tensor, "B N L"]:
    """Return the place where a kernel keeps which element has which rank, in a way of its own."""
    return torch.empty(local.shape, dtype=torch.uint8, device=local.device)
