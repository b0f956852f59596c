"""The sort and the sum by rank on a CPU, in C (``ranked.c``)."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from openvse.kernels.build import load_kernel

LARGEST = 255
"""The largest number of elements of an item, because an element's number is kept in one byte."""

_SUFFIX = {torch.float32: "float", torch.bfloat16: "bfloat"}
_VALUES_PER_THREAD = 1 << 18


class _Shape(ctypes.Structure):
    """The sizes that the C source reads; see there."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("item", "element", "elements", "dims", "ranks"))


def can_sort(local: Tensor) -> bool:
    """Return whether these sets are in float32 or bfloat16, of at most 255 elements, and the kernel can be compiled."""
    return local.dtype in _SUFFIX and local.shape[1] <= LARGEST and load_kernel("ranked") is not None


def sum_by_rank(
    local: Float[Tensor, "B N L"],
    mask: UInt8[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ids: UInt8[Tensor, "B N L"] | None,
) -> Float[Tensor, "B L"]:
    """Return the sum with weights; ``ids`` takes the element of each rank, if it is given."""
    out = torch.empty(local.shape[0], local.shape[2])
    _call("sum", local, weights.shape[1], (local, mask, weights, out, ids))
    return out.to(local.dtype)


def sum_gradients(
    local: Float[Tensor, "B N L"],
    mask: UInt8[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ids: UInt8[Tensor, "B N L"],
    given: Float[Tensor, "B L"],
) -> tuple[Float[Tensor, "B N L"], Float[Tensor, "B M"]]:
    """Give each element the gradient of its rank, and each weight that of its element."""
    of_local, of_weights = torch.empty(local.shape, dtype=local.dtype), torch.zeros_like(weights)
    tensors = (local, mask, weights, ids, given.float(), of_local, of_weights)
    _call("sum_back", local, weights.shape[1], tensors)
    return of_local, of_weights


def sort(
    local: Float[Tensor, "B N L"], mask: UInt8[Tensor, "B N"], ids: UInt8[Tensor, "B N L"] | None
) -> Float[Tensor, "B N L"]:
    """Return the sorted sets; ``ids`` takes the element of each rank, if it is given."""
    out = torch.empty(local.shape, dtype=local.dtype)
    _call("sort", local, 0, (local, mask, out, ids))
    return out


def sort_gradient(
    mask: UInt8[Tensor, "B N"], ids: UInt8[Tensor, "B N L"], given: Float[Tensor, "B N L"]
) -> Float[Tensor, "B N L"]:
    """Give each element the gradient of its rank."""
    of_local = torch.empty_like(given)
    _call("sort_back", given, 0, (mask, ids, given, of_local))
    return of_local


def _call(
    name: str, local: Float[Tensor, "B N L"], num_weights: int, tensors: tuple[Tensor | None, ...]
) -> None:
    """Run a function of the kernel over all items, by as many threads as PyTorch uses."""
    library = load_kernel("ranked")
    assert library is not None
    function = getattr(library, f"{name}_{_SUFFIX[local.dtype]}")
    shape = _Shape(local.stride(0), local.stride(1), local.shape[1], local.shape[2], num_weights)
    given = (ctypes.c_void_p * len(tensors))(*(None if each is None else each.data_ptr() for each in tensors))
    num_items = len(local)
    num_threads = min(torch.get_num_threads(), num_items, 1 + local.numel() // _VALUES_PER_THREAD)
    run = partial(library.run, function, given, ctypes.byref(shape))
    if num_threads == 1 or library.has_threads():
        run(ctypes.c_int64(0), ctypes.c_int64(num_items), num_threads)
        return
    bounds = [ctypes.c_int64(num_items * part // num_threads) for part in range(num_threads + 1)]
    threads = [threading.Thread(target=run, args=(*each, 1)) for each in pairwise(bounds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
