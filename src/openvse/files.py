"""Files that are complete at every moment, and folders that one process at a time writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from openvse.errors import OpenVSEError

LOCK = "writer.lock"
"""The lock file of a folder: the process that holds the lock may write there. The file itself is never removed."""

_held: set[IO[str]] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends, the file is renamed to ``path``.

    A reader of ``path`` sees either the complete old file or the complete new one, even if the writer is stopped.
    If the block raises, the old file stays and nothing else. The new file is on the disk before it is renamed, so
    that a power cut cannot leave an empty file in its place.

    Args:
        path: the file; its folder must exist.

    Raises:
        OSError: the file cannot be written.

    Examples:
        >>> with replacing(Path("figure.png")) as partial:  # doctest: +SKIP
        ...     figure.savefig(partial, format="png")
    """
    # Every process uses the same name, so that the leftovers of killed processes do not pile up.
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: str) -> None:
    """Write a text in UTF-8 so that the file is always complete; see ``replacing``."""
    with replacing(path) as partial:
        partial.write_text(content, encoding="utf-8")


@contextmanager
def locked(folder: Path, what: str, refusal: type[OpenVSEError]) -> Iterator[None]:
    """Hold the lock of a folder while the block runs, so that no other process writes there.

    The kernel lets go of the lock when the process ends, however it ends. Reading needs no lock.

    Args:
        folder: the folder, which must exist.
        what: the kind of folder as the message calls it, for instance "feature store".
        refusal: the error to raise when another process writes.

    Raises:
        OSError: the lock file cannot be opened.
    """
    import fcntl  # POSIX only

    _let_go_in_children()
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise refusal(
                f"{what} {folder} is being written by process {file.read()}: wait for its end, or stop it"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)


@cache
def _let_go_in_children() -> None:
    """Keep forked processes, such as a data loader's workers, from holding a lock longer than its owner lives."""

    def let_go() -> None:
        for file in _held:
            file.close()
        _held.clear()

    os.register_at_fork(after_in_child=let_go)
