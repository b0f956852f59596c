"""A device `cuda` made of the memory of the CPU: it refuses what CUDA refuses, and counts what waits for it.

An `Emulated` tensor holds a tensor of the CPU. PyTorch sees a tensor without memory (device `meta`), so every operation
arrives in `_compute`, which runs it on what is held. Two modes catch what has no such tensor yet: functions that make
one (`device="cuda"`), and moves to the device.

Refused: operations on tensors of two devices (but numbers, indices and copies), `numpy()`, and lengths of packed
sequences on the device. Not emulated: what is no operator of PyTorch (cuDNN, graphs, streams), and speed.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import PartialState
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import openvse

PACKAGE = Path(openvse.__file__).parent
CUDA = torch.device("cuda", 0)

# Their results have a shape, or are numbers, that only the device knows.
_SHAPED_BY_VALUES = {
    *("_local_scalar_dense", "_unique2", "bincount", "equal", "masked_select", "nonzero"),
    *("unique_consecutive", "unique_dim"),
}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_PACKED = {"_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence"}
_MIXED = _INDEXED | _PACKED | {"_to_copy", "copy_", "gru"}


class Waits:
    """What waited for the device since counting began: the operation and the line of openvse that called it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # bytes that go to the device
        self._counting = False

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count inside a `with`."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def add(self, operation: str, to: Counter[str], count: int = 1) -> None:
        """Count an operation, or its bytes, at the innermost line of openvse."""
        if self._counting:
            stack = traceback.extract_stack()
            last = next((f for f in reversed(stack) if f.filename.startswith(f"{PACKAGE}/")), stack[0])
            to[f"{operation} at {last.filename.removeprefix(f'{PACKAGE}/')}:{last.lineno}"] += count


WAITS = Waits()


class Emulated(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> Emulated:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device="meta", requires_grad=requires_grad
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:
        return f"Emulated({self.held!r})"

    def get_device(self) -> int:
        return 0

    def tolist(self) -> Any:
        WAITS.add("tolist", WAITS.counts)
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __reduce_ex__(self, protocol: Any) -> Any:  # a checkpoint holds it as a tensor of the CPU
        return self.held.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = Emulated(self.held.clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on what tensors hold, and give its results their device."""
    name = func._overloadpacket.__name__
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, Emulated)]
    here = [each for each in tensors if not isinstance(each, Emulated) and each.dim()]
    if there and here and name not in _MIXED:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu ({func})"
        )
    if name == "_pack_padded_sequence" and isinstance(args[1], Emulated):
        raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 tensor")
    target = kwargs.get("device")
    target = None if target is None else torch.device(target).type
    _note(name, args, kwargs, there, target)
    plain = {**kwargs, **({} if target is None else {"device": "cpu"})}
    held_args, held = tree_map(_held, (args, plain))
    result = _fused_cell(*held_args) if name == "_thnn_fused_gru_cell" else func(*held_args, **held)
    if name in _PACKED and isinstance(result, tuple):  # the sizes of a packed sequence stay on the CPU
        return _wrapped(result[0]), *result[1:]
    if not (there if target is None else target != "cpu"):
        return result
    known = {id(each.held): each for each in there}  # what is changed in place is still the same tensor
    return (
        args[0]
        if name == "copy_"
        else tree_map(lambda each: known[id(each)] if id(each) in known else _wrapped(each), result)
    )


def _note(name: str, args: Any, kwargs: Any, there: list[Emulated], target: str | None) -> None:
    """Count an operation that waits for the device, and a copy between devices."""
    if name in ("_to_copy", "copy_"):
        source, goes_there = args[0], target not in (None, "cpu")
        flags = [kwargs.get("non_blocking")]
        if name == "copy_":
            source, goes_there = args[1], isinstance(args[0], Emulated)
            flags += args[2:3]
        elif target is None:
            goes_there = isinstance(source, Emulated)
        if goes_there != isinstance(source, Emulated):
            WAITS.add(name, WAITS.copies if any(flags) else WAITS.counts)
            WAITS.add(name, WAITS.sent, source.nbytes if goes_there else 0)
    elif there and name in _INDEXED:
        masks = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
        one_number = name != "index" and args[2].numel() == 1  # is filled in where the mask is True
        if masks and not one_number:
            WAITS.add(name, WAITS.counts)
        elif any(each is not None and not isinstance(each, Emulated) for each in args[1]):
            WAITS.add(f"{name} by indices of the CPU", WAITS.counts)
    elif there and (name in _SHAPED_BY_VALUES or (name == "repeat_interleave" and kwargs.get("output_size") is None)):
        WAITS.add(name, WAITS.counts)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Emulated) else value


def _wrapped(value: Any) -> Any:
    return Emulated(value) if type(value) is Tensor else value


def _fused_cell(given: Tensor, state: Tensor, before: Tensor, given_bias: Any = None, state_bias: Any = None) -> Any:
    """Compute a step of a GRU, for which PyTorch has a kernel on GPUs alone."""
    if given_bias is not None:
        given, state = given + given_bias, state + state_bias
    (reset, update, new), (of_reset, of_update, of_new) = given.chunk(3, 1), state.chunk(3, 1)
    reset, update = torch.sigmoid(reset + of_reset), torch.sigmoid(update + of_update)
    new = torch.tanh(new + reset * of_new)
    return new + update * (before - new), torch.stack([reset, update, new, before, of_new], 1)


class _Operations(TorchDispatchMode):
    """Catches functions that make a tensor on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        made = target is not None and torch.device(target).type != "cpu"
        if made or any(isinstance(each, Emulated) for each in tree_leaves((args, kwargs))):
            return _compute(func, args, kwargs)
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Catches what names the device, which a build of PyTorch for the CPU would refuse."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        named.pop("pin_memory", None)
        if func in (Tensor.cuda, Tensor.cpu):
            func, args = Tensor.to, (args[0], "cuda" if func is Tensor.cuda else "cpu")
        if func is Tensor.to:
            return _moved(*args, **named)
        if str(named.get("device")).startswith("cuda"):
            if func in (torch.tensor, torch.as_tensor, torch.asarray):
                named.pop("device")
                return args[0] if isinstance(args[0], Emulated) else _moved(func(*args, **named), "cuda")
            named["device"] = "meta"
        return func(*args, **named)


def _moved(
    tensor: Tensor, *wanted: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False, **more: Any
) -> Tensor:
    """Do `tensor.to(...)`."""
    flags = [each for each in wanted if isinstance(each, bool)]
    for each in wanted:
        if isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, Tensor):
            device, dtype = each.device, each.dtype
        elif not isinstance(each, bool) and each is not None:
            device = each
    device = tensor.device if device is None else torch.device(device)
    device = CUDA if device.type == "meta" else device  # as code of PyTorch in C++ sees it
    dtype = tensor.dtype if dtype is None else dtype
    copy = more.get("copy") or flags[1:2] == [True]
    if device.type == tensor.device.type and dtype == tensor.dtype and not copy:
        return tensor
    place = "meta" if device.type == "cuda" else "cpu"
    flagged = non_blocking or flags[:1] == [True]
    return torch.ops.aten._to_copy.default(tensor, dtype=dtype, device=place, non_blocking=flagged)


def _module_to(module: Any, *args: Any, plain: Any = torch.nn.Module.to, **kwargs: Any) -> Any:
    """Move a module; one that is there already keeps its parameters, of which an optimiser may know."""
    places = {each.device.type for each in (*module.parameters(), *module.buffers())}
    if len(args) == 1 and isinstance(args[0], str | torch.device) and places == {torch.device(args[0]).type}:
        return module
    return plain(module, *args, **kwargs)


def _begin_with_modes(thread: threading.Thread, plain: Any = threading.Thread._bootstrap_inner) -> None:  # type: ignore[attr-defined]
    """Run a thread, which begins without the modes of the thread that starts it."""
    with _Functions(), _Operations():
        plain(thread)


def _enter_no_grad(mode: Any) -> None:
    mode.had_gradients = torch.is_grad_enabled()
    torch.set_grad_enabled(mode.had_gradients and not mode.mode)


def _leave_no_grad(mode: Any, *_: Any) -> None:
    torch.set_grad_enabled(mode.had_gradients)


@contextlib.contextmanager
def emulated_device() -> Iterator[Waits]:
    """Let `cuda` be there inside a `with`, for openvse, PyTorch and Accelerate."""
    WAITS.__init__()  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        # Tensors of this kind cannot be made in inference mode.
        patch.setattr(torch.inference_mode, "__enter__", _enter_no_grad)
        patch.setattr(torch.inference_mode, "__exit__", _leave_no_grad)
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        # PyTorch's optimisers ask for one that is checked, and would look for its streams.
        patch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: None if check_available else CUDA
        )
        patch.setattr(torch.nn.Module, "to", _module_to)
        patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *_: True)  # as of tensors of a GPU
        patch.setattr(threading.Thread, "_bootstrap_inner", _begin_with_modes)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "emulated")
        patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 0)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(PartialState, "default_device", property(lambda _: CUDA))
        try:
            with _Functions(), _Operations():
                yield WAITS
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(before)
