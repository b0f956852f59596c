"""A setting of the memory allocator: the process keeps freed memory."""

from __future__ import annotations

import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the GNU C library reuse large freed blocks instead of returning each to the system.

    A training step on a CPU frees hundreds of tensors of a few MiB and allocates them again in the next step. Each
    new page costs a page fault and is filled with zeros. Peak memory does not change, but is held until the end.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # imported only when a command runs

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(setting, _LARGEST) for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
