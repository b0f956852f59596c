"""Sets sorted in each dimension, and their sum with weights by rank, no slower than taking the maximum.

The kernel in C (``ranked.c``) expects the numbers of an element side by side, masks as bytes, and weights in float32.
The compiler of the system compiles it on its first use.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openvse.kernels import is_traced

SWITCH = "OPENVSE_KERNELS"
"""The environment variable that switches the kernels off if it is 0."""

_FLAGS = (
    ("-O3", "-march=native", "-mprefer-vector-width=512"),
    ("-O3", "-march=native"),
    ("-O3", "-mcpu=native"),
    ("-O3",),
)
_COMPILE_SECONDS = 60

_logger = logging.getLogger(__name__)


@functools.cache
def load_kernel(name: str) -> ctypes.CDLL | None:
    """Return a compiled kernel, or None if there is no compiler, it fails, or ``OPENVSE_KERNELS`` is 0.

    The source is part of the package. The compiled file is kept in ``openvse/kernels`` of the user's cache folder,
    under a name that covers the source and the processor, so each kind of machine compiles it once, in about a second.
    """
    if os.environ.get(SWITCH) == "0" or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    key = hashlib.sha256(source.read_bytes() + _processor().encode()).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openvse" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = folder / f"{name}-{key}.so"
        status = place.stat() if place.exists() else None
        if status and status.st_uid == os.getuid() and not status.st_mode & 0o022:  # only this user wrote it
            with suppress(OSError):  # built for a PyTorch with another threading library
                return ctypes.CDLL(str(place))
        return _compile(source, place)
    except (OSError, subprocess.SubprocessError) as error:
        _logger.debug("the kernel %s is not used: %s", name, error)
        return None


def _compile(source: Path, place: Path) -> ctypes.CDLL:
    """Compile a source and load it. Raise OSError if there is no compiler or it fails."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("there is no C compiler")
    refused = ""
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made, parts = Path(folder) / place.name, Path(folder) / f"{source.stem}.o"
        for flags, threads in itertools.product(_FLAGS, (["-fopenmp"], [])):
            # Not linked to a threading library: the loader finds the one that PyTorch has loaded.
            steps = (
                [*flags, *threads, "-fPIC", "-c", str(source), "-o", str(parts)],
                ["-shared", str(parts), "-o", str(made)],
            )
            try:
                for step in steps:
                    subprocess.run([compiler, *step], capture_output=True, timeout=_COMPILE_SECONDS, check=True)
                library = ctypes.CDLL(str(made))
            except subprocess.CalledProcessError as error:
                refused = error.stderr.decode(errors="replace").strip()[:500]
            except OSError as error:
                refused = str(error)
            else:
                made.chmod(0o700)
                made.replace(place)
                return library
    raise OSError(refused)


def _processor() -> str:
    """Return the kind of the processor, whose instructions the compiled code uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"


LARGEST = 255
"""The largest number of elements of an item, because an element's number is kept in one byte."""

_SUFFIX = {torch.float32: "float", torch.bfloat16: "bfloat"}
_VALUES_PER_THREAD = 1 << 18


def is_usable(local: Tensor) -> bool:
    """Return whether the kernel can sort these sets, and nothing is being compiled or traced.

    The sets must be on the CPU, in float32 or bfloat16, of at most 255 elements.
    """
    return (
        not is_traced()  # first: comparing a size would limit the sizes of a traced program
        and local.numel() > 0
        and type(local) in (Tensor, nn.Parameter)  # neither fake nor functional, as while a graph is traced
        and torch._C._get_tracing_state() is None
        and local.device.type == "cpu"
        and local.dtype in _SUFFIX
        and local.shape[1] <= LARGEST
        and load_kernel("ranked") is not None
    )


def sort_elements(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
    """Sort the elements in each dimension, largest first. NaN counts as the largest. Padding comes last and is 0."""
    if torch.is_grad_enabled() and local.requires_grad:
        sorted_elements: Tensor = _Sort.apply(local, mask)  # type: ignore[no-untyped-call]
    else:
        sorted_elements = _sorted(_with_rows(local), _bytes(mask), None)
    return sorted_elements


def sum_ranked(
    local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"], weights: Float[Tensor, "B M"]
) -> Float[Tensor, "B L"]:
    """Sum the elements with weights by their rank in each dimension, in single precision.

    An element of weight 0 does not count, even if it is infinite. The sum is NaN if any element is NaN. M, the number
    of weights, is at least the size of the largest set.
    """
    if weights.shape[1] < mask.shape[1] and weights.shape[1] < int(mask.sum(dim=1).max()):
        raise ValueError(f"sum_ranked got {weights.shape[1]} weights for sets of {int(mask.sum(dim=1).max())} elements")
    if torch.is_grad_enabled() and (local.requires_grad or weights.requires_grad):
        summed: Tensor = _Sum.apply(local, mask, weights)  # type: ignore[no-untyped-call]
    else:
        single = weights.float().contiguous()
        summed = _sum_by_rank(_with_rows(local), _bytes(mask), single, None)
    return summed


class _Sum(torch.autograd.Function):
    """``sum_ranked`` with its gradient, which needs the elements and one byte for each of them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        """Sum, and keep which element has which rank."""
        given = _with_rows(local), _bytes(mask), weights.float().contiguous(), _byte_for_each(local)
        ctx.save_for_backward(*given)
        ctx.kind = weights.dtype
        return _sum_by_rank(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, Tensor]:
        """Give each element the gradient of its rank, and each weight the gradient summed over its elements."""
        local, mask, weights, ids = ctx.saved_tensors
        of_local, of_weights = torch.empty(local.shape, dtype=local.dtype), torch.zeros_like(weights)
        tensors = (local, mask, weights, ids, given.contiguous().float(), of_local, of_weights)
        _call("sum_back", local, weights.shape[1], tensors)
        return of_local, None, of_weights.to(ctx.kind)


class _Sort(torch.autograd.Function):
    """``sort_elements`` with its gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mask: Tensor) -> Tensor:
        """Sort, and keep which element has which rank."""
        real, ids = _bytes(mask), _byte_for_each(local)
        ctx.save_for_backward(real, ids)
        return _sorted(_with_rows(local), real, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        """Give each element the gradient of its rank."""
        mask, ids = ctx.saved_tensors
        given = given.contiguous()
        of_local = torch.empty_like(given)
        _call("sort_back", given, 0, (mask, ids, given, of_local))
        return of_local, None


def _with_rows(local: Float[Tensor, "B N L"]) -> Float[Tensor, "B N L"]:
    """Return the sets with each element's numbers side by side, copied only if needed."""
    return local if local.stride(2) == 1 else local.contiguous()


def _bytes(mask: Bool[Tensor, "B N"]) -> UInt8[Tensor, "B N"]:
    return mask.contiguous().view(torch.uint8)


def _byte_for_each(local: Float[Tensor, "B N L"]) -> UInt8[Tensor, "B N L"]:
    """Return the buffer where a kernel keeps the order of the elements, in a format of its own."""
    return torch.empty(local.shape, dtype=torch.uint8, device=local.device)


class _Shape(ctypes.Structure):
    """The sizes that the C source reads. See there."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("item", "element", "elements", "dims", "ranks"))


def _sum_by_rank(
    local: Float[Tensor, "B N L"],
    mask: UInt8[Tensor, "B N"],
    weights: Float[Tensor, "B M"],
    ids: UInt8[Tensor, "B N L"] | None,
) -> Float[Tensor, "B L"]:
    """Return the sum with weights. ``ids``, if given, receives the element of each rank."""
    out = torch.empty(local.shape[0], local.shape[2])
    _call("sum", local, weights.shape[1], (local, mask, weights, out, ids))
    return out.to(local.dtype)


def _sorted(
    local: Float[Tensor, "B N L"], mask: UInt8[Tensor, "B N"], ids: UInt8[Tensor, "B N L"] | None
) -> Float[Tensor, "B N L"]:
    """Return the sorted sets. ``ids``, if given, receives the element of each rank."""
    out = torch.empty(local.shape, dtype=local.dtype)
    _call("sort", local, 0, (local, mask, out, ids))
    return out


def _call(name: str, local: Float[Tensor, "B N L"], num_weights: int, tensors: tuple[Tensor | None, ...]) -> None:
    """Run a function of the kernel over all items, with as many threads as PyTorch uses."""
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
