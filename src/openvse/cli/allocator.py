"""A setting of the memory allocator: what the process does with freed memory."""

from __future__ import annotations

import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST = 2**31 - 1
_LARGE = 1 << 24


def keep_freed_memory() -> bool:
    """Let the GNU C library reuse large freed blocks instead of returning each to the system.

    A training step on a CPU frees hundreds of tensors of a few MiB and allocates them again in the next step. Each
    new page costs a page fault and is filled with zeros. Peak memory does not change, but is held until the end.

    Returns:
        Whether the C library accepted the setting; only the GNU library is asked.
    """
    return _set({_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _LARGEST})


def give_back_memory() -> bool:
    """Let it return blocks of 16 MiB and more, such as the bodies of uploads, which each thread would keep."""
    return _set({_MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _LARGE, _ARENA_MAX: 2})


def _set(settings: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # imported only when a command runs

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(setting, value) for setting, value in settings.items())
