"""How the process keeps its memory."""

from __future__ import annotations

import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the GNU C library reuse large freed blocks, where it would give each back to the system.

    A training step on a CPU frees hundreds of tensors of some MiB, and makes them anew in the next step; each new page
    costs a fault and is filled with zeros. Peak memory stays what it was, but is held until the process ends.

    Returns:
        Whether the C library took the setting; others than GNU's are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # not before a command runs

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(setting, _LARGEST) for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
