"""A setting of the memory allocator: what the process does with freed memory."""

from __future__ import annotations

import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1
_LARGE = 1 << 22


def keep_freed_memory(most: int = _LARGEST) -> bool:
    """Let the GNU C library reuse freed blocks of up to ``most`` bytes instead of returning each to the system.

    A training step on a CPU frees hundreds of tensors of a few MiB and allocates them again in the next step. Each
    new page costs a page fault and is filled with zeros. Peak memory does not change, but is held until the end.

    Returns:
        Whether the C library accepted the setting; only the GNU library is asked.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # imported only when a command runs

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(setting, most) for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


def give_back_memory() -> bool:
    """Let it return large blocks, such as the bodies of uploads; by itself it keeps some of them in each thread."""
    return keep_freed_memory(_LARGE)
