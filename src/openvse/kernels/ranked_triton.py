"""The sort and the sum by rank on a GPU, in Triton.

A thread holds one dimension of a set in its registers. So every value is read once, in whole rows, and Batcher's
bitonic sort exchanges values without asking other threads. Values are compared as whole numbers of the same order, in
which not-a-number comes first, as in ``torch.sort``. For the gradient, one byte says which rank an element has: a
second sort, of the elements' numbers, finds it.

These kernels have not been run on a GPU yet: the tests run them in Triton's interpreter, and compile them for a GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

LARGEST = 64
"""The largest number of elements of an item: each takes two registers of a thread, which has 255."""

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDTH = 128  # dimensions of a program: one for each of its threads
_WARPS = 4


def can_sort(local: Tensor) -> bool:
    """Return whether these sets are in a type of at most 32 bits, of at most 64 elements."""
    return local.dtype in _TYPES and local.shape[1] <= LARGEST


def sum_by_rank(
    local: Float[Tensor, "B N L"],
    mask: UInt8[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ranks: UInt8[Tensor, "B N L"] | None,
) -> Float[Tensor, "B L"]:
    """Return the sum with weights; ``ranks`` takes the rank of each element, if it is given."""
    out = local.new_empty(local.shape[0], local.shape[2])
    sizes, keep = (*_sizes(local), weights.shape[1]), ranks is not None
    with _on(local):
        _sum_kernel[_grid(local)](local, mask, weights, out, ranks, *sizes, **_constants(local), KEEP=keep)
    return out


def sum_gradients(
    local: Float[Tensor, "B N L"],
    mask: UInt8[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ranks: UInt8[Tensor, "B N L"],
    given: Float[Tensor, "B L"],
) -> tuple[Float[Tensor, "B N L"], Float[Tensor, "B M"]]:
    """Give each element the gradient of its rank, and each weight that of its element."""
    grid, sizes = _grid(local), (*_sizes(local), weights.shape[1])
    of_local = torch.empty(local.shape, dtype=local.dtype, device=local.device)
    of_weights = weights.new_zeros(len(weights), grid[1], weights.shape[1])  # each program has its own part
    tensors = (local, mask, weights, ranks, given, of_local, of_weights)
    with _on(local):
        _sum_gradients_kernel[grid](*tensors, *sizes, **_constants(local))
    return of_local, of_weights.sum(dim=1)


def sort(
    local: Float[Tensor, "B N L"], mask: UInt8[Tensor, "B N"], ranks: UInt8[Tensor, "B N L"] | None
) -> Float[Tensor, "B N L"]:
    """Return the sorted sets; ``ranks`` takes the rank of each element, if it is given."""
    out, keep = torch.empty(local.shape, dtype=local.dtype, device=local.device), ranks is not None
    with _on(local):
        _sort_kernel[_grid(local)](local, mask, out, ranks, *_sizes(local), **_constants(local), KEEP=keep)
    return out


def sort_gradient(
    mask: UInt8[Tensor, "B N"], ranks: UInt8[Tensor, "B N L"], given: Float[Tensor, "B N L"]
) -> Float[Tensor, "B N L"]:
    """Give each element the gradient of its rank."""
    of_local = torch.empty_like(given)
    with _on(given):
        _sort_gradient_kernel[_grid(given)](
            mask, ranks, given, of_local, *given.shape[1:], **_constants(given)
        )
    return of_local


def _on(local: Tensor) -> AbstractContextManager[object]:
    """Make the device of a tensor the current one, where kernels are started."""
    return torch.cuda.device(local.device) if local.is_cuda else nullcontext()


def _grid(local: Float[Tensor, "B N L"]) -> tuple[int, int]:
    return local.shape[0], triton.cdiv(local.shape[2], _WIDTH)


def _sizes(local: Float[Tensor, "B N L"]) -> tuple[int, ...]:
    """Return the strides of items, elements and dimensions, and the number of elements and of dimensions."""
    return *local.stride(), *local.shape[1:]


def _constants(local: Float[Tensor, "B N L"]) -> dict[str, int]:
    """Return what a kernel is compiled for."""
    return {"LOG": (local.shape[1] - 1).bit_length(), "WIDTH": _WIDTH, "num_warps": _WARPS}


# A program is not compiled for their values. The stride of dimensions is 1, but if Triton knew, it would give a thread
# four dimensions, and a set to several threads.
_VARYING = ("elements", "num_ranks", "by_dim")


@triton.jit
@no_type_check
def _read(x, mask, dim, by_item, by_element, by_dim, elements, dims, LOG: tl.constexpr):
    """Read some dimensions of a set as numbers to sort, of which padding has the smallest. Return its size, too."""
    b, n = tl.program_id(0).to(tl.int64), tl.arange(0, 1 << LOG)
    real = tl.load(mask + b * elements + n, mask=n < elements, other=0) != 0
    place = x + b * by_item + n[:, None] * by_element + dim[None, :] * by_dim
    rows = tl.load(place, mask=real[:, None] & (dim < dims)[None, :], other=0.0).to(tl.float32)
    is_number = rows == rows  # noqa: PLR0124
    keys = tl.where(is_number, _turned(rows.to(tl.int32, bitcast=True)), 0x7FFFFFFF)
    return tl.where(real[:, None], keys, -0x80000000), tl.sum(real.to(tl.int32))


@triton.jit
@no_type_check
def _turned(bits):
    """Turn the bits of numbers into whole numbers of the same order, or back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
@no_type_check
def _values(keys):
    return _turned(keys).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _halves(rows, APART: tl.constexpr):
    """Return the rows to compare with those so far below them, and those: each [ROWS / 2 / APART, APART, WIDTH]."""
    shape: tl.constexpr = (rows.shape[0] // 2 // APART, 2, APART, rows.shape[1])
    return tl.split(tl.permute(tl.reshape(rows, shape), (0, 2, 3, 1)))


@triton.jit
@no_type_check
def _whole(first, second):
    """Put the halves together again."""
    rows = tl.permute(tl.join(first, second), (0, 3, 1, 2))
    return tl.reshape(rows, (first.shape[0] * 2 * first.shape[1], first.shape[2]))


@triton.jit
@no_type_check
def _sort(keys, LOG: tl.constexpr):
    """Sort 2^LOG rows, largest first."""
    # Runs of 2^p rows become runs of twice as many, by turns falling and rising.
    for p in tl.static_range(LOG):
        for q in tl.static_range(p + 1):
            first, second = _halves(keys, 1 << (p - q))
            rises = ((tl.arange(0, first.shape[0]) >> q) % 2 != 0)[:, None, None]
            larger, smaller = tl.maximum(first, second), tl.minimum(first, second)
            keys = _whole(tl.where(rises, smaller, larger), tl.where(rises, larger, smaller))
    return keys


@triton.jit
@no_type_check
def _sort_with_ids(keys, LOG: tl.constexpr):
    """Sort 2^LOG rows, largest first, and return the numbers of their elements, too."""
    ids = tl.broadcast_to(tl.arange(0, 1 << LOG)[:, None], keys.shape)
    for p in tl.static_range(LOG):
        for q in tl.static_range(p + 1):
            first, second = _halves(keys, 1 << (p - q))
            rises = ((tl.arange(0, first.shape[0]) >> q) % 2 != 0)[:, None, None]
            swap = (second > first) != rises
            keys = _whole(tl.where(swap, second, first), tl.where(swap, first, second))
            first, second = _halves(ids, 1 << (p - q))
            ids = _whole(tl.where(swap, second, first), tl.where(swap, first, second))
    return keys, ids


@triton.jit
@no_type_check
def _places(tensor, dim, elements, dims, LOG: tl.constexpr):
    """Return the places of a program's values in a contiguous tensor [B, N, L], and which of them exist."""
    n = tl.arange(0, 1 << LOG)[:, None]
    item = tensor + tl.program_id(0).to(tl.int64) * elements * dims
    return item + n * dims + dim[None, :], (n < elements) & (dim < dims)[None, :]


@triton.jit
@no_type_check
def _write_ranks(ranks, ids, dim, elements, dims, LOG: tl.constexpr):
    """Write the rank of each element, from the elements in the order of their ranks."""
    by_number = _sort((256 - ids) * 256 + tl.arange(0, 1 << LOG)[:, None], LOG)
    place, there = _places(ranks, dim, elements, dims, LOG)
    tl.store(place, (by_number % 256).to(tl.uint8), mask=there)


@triton.jit
@no_type_check
def _read_ranks(ranks, mask, dim, elements, dims, LOG: tl.constexpr):
    """Read the rank of each element; that of padding is beyond all."""
    b, n = tl.program_id(0).to(tl.int64), tl.arange(0, 1 << LOG)
    real = tl.load(mask + b * elements + n, mask=n < elements, other=0) != 0
    place, there = _places(ranks, dim, elements, dims, LOG)
    return tl.load(place, mask=there & real[:, None], other=255).to(tl.int32)


@triton.jit(do_not_specialize=_VARYING)
@no_type_check
def _sum_kernel(
    x,
    mask,
    weights,
    out,
    ranks,
    by_item,
    by_element,
    by_dim,
    elements,
    dims,
    num_ranks,
    LOG: tl.constexpr,
    WIDTH: tl.constexpr,
    KEEP: tl.constexpr,
):
    b, n = tl.program_id(0).to(tl.int64), tl.arange(0, 1 << LOG)
    dim = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    keys, size = _read(x, mask, dim, by_item, by_element, by_dim, elements, dims, LOG)
    if KEEP:
        keys, ids = _sort_with_ids(keys, LOG)
        _write_ranks(ranks, ids, dim, elements, dims, LOG)
    else:
        keys = _sort(keys, LOG)
    weight = tl.load(weights + b * num_ranks + n, mask=n < size, other=0.0)[:, None]
    shares = tl.where(weight == 0, 0.0, weight * _values(keys))  # what has no weight may be infinite
    tl.store(out + b * dims + dim, tl.sum(shares, axis=0), mask=dim < dims)


@triton.jit(do_not_specialize=_VARYING)
@no_type_check
def _sum_gradients_kernel(
    x,
    mask,
    weights,
    ranks,
    given,
    of_x,
    of_weights,
    by_item,
    by_element,
    by_dim,
    elements,
    dims,
    num_ranks,
    LOG: tl.constexpr,
    WIDTH: tl.constexpr,
):
    b, n = tl.program_id(0).to(tl.int64), tl.arange(0, 1 << LOG)
    dim = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    upper = tl.load(given + b * dims + dim, mask=dim < dims, other=0.0).to(tl.float32)[None, :]
    rank = _read_ranks(ranks, mask, dim, elements, dims, LOG)
    weight = tl.load(weights + b * num_ranks + rank, mask=rank < elements, other=0.0)
    place, there = _places(of_x, dim, elements, dims, LOG)
    tl.store(place, weight * upper, mask=there)

    keys, size = _read(x, mask, dim, by_item, by_element, by_dim, elements, dims, LOG)
    shares = tl.where((n < size)[:, None] & (dim < dims)[None, :], _values(_sort(keys, LOG)) * upper, 0.0)
    program = b * tl.num_programs(1) + tl.program_id(1)
    tl.store(of_weights + program * num_ranks + n, tl.sum(shares, axis=1), mask=n < size)


@triton.jit(do_not_specialize=_VARYING)
@no_type_check
def _sort_kernel(
    x,
    mask,
    out,
    ranks,
    by_item,
    by_element,
    by_dim,
    elements,
    dims,
    LOG: tl.constexpr,
    WIDTH: tl.constexpr,
    KEEP: tl.constexpr,
):
    dim = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    keys, size = _read(x, mask, dim, by_item, by_element, by_dim, elements, dims, LOG)
    if KEEP:
        keys, ids = _sort_with_ids(keys, LOG)
        _write_ranks(ranks, ids, dim, elements, dims, LOG)
    else:
        keys = _sort(keys, LOG)
    rows = tl.where((tl.arange(0, 1 << LOG) < size)[:, None], _values(keys), 0.0)
    place, there = _places(out, dim, elements, dims, LOG)
    tl.store(place, rows, mask=there)


@triton.jit(do_not_specialize=_VARYING)
@no_type_check
def _sort_gradient_kernel(mask, ranks, given, of_x, elements, dims, LOG: tl.constexpr, WIDTH: tl.constexpr):
    b, dim = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    rank = _read_ranks(ranks, mask, dim, elements, dims, LOG)
    row = tl.load(given + b * elements * dims + rank * dims + dim[None, :], mask=rank < elements, other=0.0)
    place, there = _places(of_x, dim, elements, dims, LOG)
    tl.store(place, row, mask=there)
