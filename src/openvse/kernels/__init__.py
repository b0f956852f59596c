"""Inner loops in C, compiled on first use. Each has an equivalent in PyTorch, which a GPU uses.

``OPENVSE_KERNELS=0`` in the environment switches them off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch

_tracing: set[int] = set()

captured: set[int] = set()
"""The threads whose work a GPU will do again on other values, as ``packages/openvse-cuda-graphs`` lets it."""


@contextmanager
def tracing() -> Iterator[None]:
    """Let ``is_traced`` be true of this thread alone: PyTorch says of all threads that they compile while one does."""
    _tracing.add(get_ident())
    try:
        yield
    finally:
        _tracing.discard(get_ident())


def is_traced() -> bool:
    """Return whether a program is made of what runs, so that neither sizes nor values may decide what is done."""
    if torch.compiler.is_dynamo_compiling():
        return True
    return torch.compiler.is_compiling() and (not _tracing or get_ident() in _tracing)


def is_captured() -> bool:
    """Return whether this thread is one of the captured ones."""
    return get_ident() in captured


def shapes_are_fixed() -> bool:
    """Return whether values may decide no shape, since what runs is traced or captured."""
    return is_traced() or is_captured()
