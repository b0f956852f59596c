"""A process that ends at a chosen change of the disk, without a compiler: at what Python itself is about to do.

Writes of libraries in C, and half writes, are seen by ``tests/crash`` alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1, "os.link": 2}
STOPPED = 137


def ends_at(work: Callable[[], object], folder: Path, number: int) -> int:
    """Run a function in a forked process that ends before its change of this number, from 0; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            left = number

            def look(event: str, given: tuple[Any, ...]) -> None:
                nonlocal left
                if _changes(event, given, str(folder)):
                    if left == 0:
                        os._exit(STOPPED)
                    left -= 1

            sys.addaudithook(look)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _changes(event: str, given: tuple[Any, ...], folder: str) -> bool:
    if event == "open":
        path, _, flags = given
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        return bool(writes) and not isinstance(path, int) and _below(path, folder)
    if event in ("os.remove", "os.rmdir") and given[1] >= 0:  # below an open folder
        given = (str(Path(f"/proc/self/fd/{given[1]}").readlink() / given[0]),)
    count = _CHANGES.get(event, 0)
    return any(_below(path, folder) for path in given[:count])


def _below(path: Any, folder: str) -> bool:
    return os.fsdecode(path).startswith(folder) if isinstance(path, str | bytes | os.PathLike) else True
