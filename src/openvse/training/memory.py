"""Whether a model fits into the memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from openvse.errors import CheckpointError, OpenVSEError

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # the limit of a container


_GB = 1e9


def memory_of_machine() -> int | None:
    """Return the bytes of memory that this machine, or the container around the process, has. None if unknown."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(whole, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # no such limit, or "max"
        return whole


def expect_memory(needed: int, what: str, error: type[OpenVSEError] = CheckpointError) -> None:
    """Raise an error if something takes more bytes of memory than this machine has."""
    if (there := memory_of_machine()) is not None and needed > there:
        raise error(
            f"{what} take {needed / _GB:.1f} GB of memory, but this machine has {there / _GB:.1f} GB: take a smaller "
            f"model ('openvse list models' lists some), or a machine with more memory"
        )
