"""Files that are whole at every moment, and folders that one process at a time writes to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from openvse.errors import OpenVSEError

LOCK = "writer.lock"
"""The file in a folder whose holder may write there. It stays behind; what counts is whether it is held."""

_held: set[IO[str]] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; when the block ends, that file takes its name.

    Whoever reads ``path`` sees the old file or the new one, whole, whenever the writer is stopped. A block
    that raises leaves the old file and nothing else. The new one is on the disk before it takes the name, so
    that a power cut cannot leave an empty file in its place.

    Args:
        path: the file; its folder must exist.

    Raises:
        OSError: the disk refuses.

    Examples:
        >>> with replacing(Path("figure.png")) as partial:  # doctest: +SKIP
        ...     figure.savefig(partial, format="png")
    """
    # One name for all: what a killed process left is overwritten by the next, and never piles up.
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder`` to write to; when the block ends, it takes the name.

    Whoever reads ``folder`` sees all of it or nothing. A block that raises leaves nothing; what a killed process left
    beside is removed by the next that writes the same folder.

    Args:
        folder: must not exist, or be empty.

    Raises:
        OSError: the disk refuses.
    """
    folder = folder.resolve()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, content: str) -> None:
    """Write a text in UTF-8 so that the file is always whole; see ``replacing``."""
    with replacing(path) as partial:
        partial.write_text(content, encoding="utf-8")


@contextmanager
def locked(folder: Path, what: str, refusal: type[OpenVSEError]) -> Iterator[None]:
    """Be the only process that writes to a folder while the block runs.

    The kernel lets go of the lock when the process ends, however it ends. Reading needs no lock.

    Args:
        folder: it must exist.
        what: names the folder's kind in the message, for instance "feature store".
        refusal: the error to raise when another process writes.

    Raises:
        OSError: the disk refuses.
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
