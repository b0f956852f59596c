"""Sets sorted in each dimension on a CPU, and their sum with weights by rank: no slower than taking the maximum."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.kernels.build import load_kernel

LARGEST = 255
"""The largest number of elements of an item, because an element's number is kept in one byte."""

_SUFFIX = {torch.float32: "float", torch.bfloat16: "bfloat"}
_VALUES_PER_THREAD = 1 << 18


class _Shape(ctypes.Structure):
    """The sizes that the C source reads; see there."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("item", "element", "elements", "dims", "ranks"))


def is_usable(local: Tensor) -> bool:
    """Return whether the kernel can sort these sets: on a CPU, in float32 or bfloat16, of at most 255 elements."""
    return (
        local.device.type == "cpu"
        and local.dtype in _SUFFIX
        and 0 < local.shape[1] <= LARGEST
        and local.numel() > 0
        and type(local) in (Tensor, nn.Parameter)  # neither fake nor functional, as while a graph is traced
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and load_kernel("ranked") is not None
    )


def sort_elements(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
    """Sort the elements in each dimension, largest first; padding comes last and is 0.

    Args:
        local: sets for which ``is_usable`` is True.
        mask: which elements are real, in any places.
    """
    if torch.is_grad_enabled() and local.requires_grad:
        sorted_elements: Tensor = _Sort.apply(local, mask)  # type: ignore[no-untyped-call]
        return sorted_elements
    return _sort(local, mask, None)


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
        return summed
    return _sum(local, mask, weights.float().contiguous(), None).to(local.dtype)


class _Sum(torch.autograd.Function):
    """``sum_ranked`` with its gradient, which needs the elements and one byte for each of them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        """Sum, and keep the element of each rank."""
        ids = torch.empty(local.shape, dtype=torch.uint8)
        single = weights.float().contiguous()
        ctx.save_for_backward(local, mask, single, ids)
        ctx.kind = weights.dtype
        return _sum(local, mask, single, ids).to(local.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, Tensor]:
        """Give each element the gradient of its rank, and each weight that of its element."""
        local, mask, weights, ids = ctx.saved_tensors
        local, of_weights = _with_rows(local), torch.zeros_like(weights)
        of_local = torch.empty(local.shape, dtype=local.dtype)
        tensors = (local, _bytes(mask), weights, ids, given.float().contiguous(), of_local, of_weights)
        _call("sum_back", local, weights.shape[1], tensors)
        return of_local, None, of_weights.to(ctx.kind)


class _Sort(torch.autograd.Function):
    """``sort_elements`` with its gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor) -> Tensor:
        """Sort, and keep the element of each rank."""
        ids = torch.empty(local.shape, dtype=torch.uint8)
        ctx.save_for_backward(mask, ids)
        return _sort(local, mask, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        """Give each element the gradient of its rank."""
        mask, ids = ctx.saved_tensors
        given = given.contiguous()
        of_local = torch.empty_like(given)
        _call("sort_back", given, 0, (_bytes(mask), ids, given, of_local))
        return of_local, None


def _sum(
    local: Float[Tensor, "B N L"],
    mask: Bool[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ids: UInt8[Tensor, "B N L"] | None,
) -> Float[Tensor, "B L"]:
    local, out = _with_rows(local), torch.empty(local.shape[0], local.shape[2])
    _call("sum", local, weights.shape[1], (local, _bytes(mask), weights, out, ids))
    return out


def _sort(
    local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], ids: UInt8[Tensor, "B N L"] | None
) -> Float[Tensor, "B N L"]:
    local, out = _with_rows(local), torch.empty(local.shape, dtype=local.dtype)
    _call("sort", local, 0, (local, _bytes(mask), out, ids))
    return out


def _with_rows(local: Float[Tensor, "B N L"]) -> Float[Tensor, "B N L"]:
    """Return the sets with each element's numbers side by side: as they are, or a copy."""
    return local if local.stride(2) == 1 else local.contiguous()


def _bytes(mask: Bool[Tensor, "B N"]) -> UInt8[Tensor, "B N"]:
    return mask.contiguous().view(torch.uint8)


def _call(
    name: str, local: Float[Tensor, "B N L"], num_weights: int, tensors: tuple[Tensor | None, ...]
) -> None:
    """Run a function of the kernel over all items, by as many threads as PyTorch uses."""
    function = getattr(load_kernel("ranked"), f"{name}_{_SUFFIX[local.dtype]}")
    shape = _Shape(local.stride(0), local.stride(1), local.shape[1], local.shape[2], num_weights)
    given = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    num_items = len(local)
    num_threads = min(torch.get_num_threads(), num_items, 1 + local.numel() // _VALUES_PER_THREAD)
    bounds = [ctypes.c_int64(num_items * part // num_threads) for part in range(num_threads + 1)]
    threads = [
        threading.Thread(target=function, args=(*given, ctypes.byref(shape), *bounds[part : part + 2]))
        for part in range(1, num_threads)
    ]
    for thread in threads:
        thread.start()
    function(*given, ctypes.byref(shape), *bounds[:2])
    for thread in threads:
        thread.join()
