"""Graphs on the emulated device of ``tests/device``: operators with the places of what they read and write."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.device import emulated_device as emulated

_recorded = threading.local()


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _held(values: Any) -> list[Tensor]:
    """Return what the tensors of the device hold."""
    return [each.held for each in tree_leaves(values) if isinstance(each, emulated.Emulated)]


class Graph:
    """The operators that a thread starts inside ``recorded``."""

    def __init__(self) -> None:
        self._operators: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._given: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: list[Tensor] = []

    @staticmethod
    def now() -> Graph | None:
        """Return the graph that this thread records."""
        return getattr(_recorded, "graph", None)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record inside a ``with``, where a GPU computes nothing: what was there before has its values again."""
        drawn, _recorded.graph = torch.get_rng_state(), self
        try:
            yield
        finally:
            _recorded.graph = None
            torch.set_rng_state(drawn)
            for tensor, before in self._given.values():
                tensor.copy_(before)

    def record(self, compute: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator and keep it, unless its results are views."""
        given, ours = _held((args, kwargs)), {_place(each) for each in self._made}
        for each in given:
            if _place(each) not in ours and _place(each) not in self._given:
                whole = each.as_strided((each.untyped_storage().nbytes() // each.itemsize,), (1,), 0)
                self._given[_place(each)] = whole, whole.clone()
        result = compute(func, args, kwargs)
        made, places = _held(result), {_place(each) for each in given}
        new = [each for each in made if _place(each) not in places]
        self._made += new
        if new or not made or func._schema.is_mutable:
            self._operators.append((func, args, kwargs, made))
        return result

    def replay(self) -> None:
        """Do the same to the same places."""
        for func, args, kwargs, made in self._operators:
            for place, result in zip(made, _held(emulated._compute(func, args, kwargs)), strict=True):
                if _place(result) != _place(place):
                    place.copy_(result)


@contextlib.contextmanager
def emulated_graphs() -> Iterator[emulated.Waits]:
    """Emulate a device whose streams can be captured, and refuse meanwhile what CUDA refuses or does only once."""
    compute, add, plain = emulated._compute, emulated.Waits.add, emulated._Operations.__torch_dispatch__

    def recording(func: Any, args: Any, kwargs: Any) -> Any:
        graph = Graph.now()
        return compute(func, args, kwargs) if graph is None else graph.record(compute, func, args, kwargs)

    def waiting(waits: emulated.Waits, operation: str, to: Any, count: int = 1) -> None:
        if Graph.now():
            raise RuntimeError(f"operation not permitted when stream is capturing ({operation})")
        add(waits, operation, to, count)

    def here(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = plain(mode, func, types, args, kwargs)
        drawn, made = torch.Tag.nondeterministic_seeded in func.tags, tree_leaves(result)
        made_here = drawn or any(isinstance(each, Tensor) and each.numel() > 1 for each in made)
        if Graph.now() and made_here and not _held((result, args, kwargs)):
            raise RuntimeError(f"{func} on the CPU, which a graph would not do again")
        return result

    stream = SimpleNamespace(wait_stream=lambda _: None)
    with emulated.emulated_device() as waits, pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated, "_compute", recording)
        patch.setattr(emulated.Waits, "add", waiting)
        patch.setattr(emulated._Operations, "__torch_dispatch__", here)
        patch.setattr(torch.cuda, "Stream", lambda: stream)
        patch.setattr(torch.cuda, "current_stream", lambda: stream)
        patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "graph", lambda graph, **_: graph.recorded())
        yield waits
