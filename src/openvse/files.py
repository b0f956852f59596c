"""Files that are complete at every moment, and folders that one process at a time writes to."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from openvse.errors import DiskError, OpenVSEError

LOCK = "writer.lock"
"""The lock file of a folder: the process that holds the lock may write there. The file itself is never removed."""

PARTIAL = ".partial"
"""The folder in which ``replacing_files`` collects the new files of a folder."""

_held: set[IO[bytes]] = set()

_BLOCK = 1 << 20

_REFUSALS = {
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EACCES", "EPERM")
}


def refusal_of_disk(error: BaseException | None) -> str | None:
    """Return why the disk refused, if that is behind an error, and None otherwise.

    Libraries that write by themselves hide the system's error: PyTorch behind one about its own format, the
    Rust ones in the text of a class of their own.
    """
    while error is not None:
        if isinstance(error, DiskError):
            return error.strerror
        if isinstance(error, OSError) and error.errno is not None and error.errno in _REFUSALS:
            return os.strerror(error.errno)
        told = re.search(r"\(os error (\d+)\)", str(error))
        if told and int(told[1]) in _REFUSALS:
            return os.strerror(int(told[1]))
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make one line of what is raised when the disk refuses, whichever library writes.

    Args:
        path: the file or folder that is written, for the message.

    Raises:
        DiskError: the disk is full, or refuses.
    """
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        reason = refusal_of_disk(error)
        if reason is None:
            raise
        raise DiskError(
            f"{path} cannot be written ({reason}): make room or choose another place, and run again; "
            f"what was there before is unchanged",
            reason,
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends, the file is renamed to ``path``.

    Whoever reads ``path`` sees the old file or the new one, whole, whenever the writer is stopped. A block
    that raises leaves the old file and nothing else. The new one is on the disk before it takes the name, so
    that a power cut cannot leave an empty file in its place. Who may read it follows from the umask, also where
    a library writes it through a private temporary file.

    Args:
        path: the file; its folder must exist.

    Raises:
        DiskError: the disk is full, or refuses.
        OSError: the folder does not exist.

    Examples:
        >>> with replacing(Path("figure.png")) as partial:  # doctest: +SKIP
        ...     figure.savefig(partial, format="png")
    """
    # Every process uses the same name, so that the leftovers of killed processes do not pile up.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            mode = _new_file(partial)
            yield partial
            _settle(partial, mode)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_files(folder: Path, last: Sequence[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to write to; when the block ends, its files take their places below ``folder``.

    Nothing in ``folder`` changes before all of them are whole and on the disk; then they are renamed, which
    needs no room. A block that raises leaves what was there, and no folder where there was none.

    Args:
        folder: created where it is missing; files that the block does not write stay.
        last: names of the files that take their places after all others, in this order.

    Raises:
        DiskError: the disk is full, or refuses.
    """
    partial = folder / PARTIAL
    with made(folder), writing(folder):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            mode = _new_file(partial / PARTIAL)
            (partial / PARTIAL).unlink()
            yield partial
            names = [path.relative_to(partial) for path in sorted(partial.rglob("*")) if path.is_file()]
            for name in names:
                _settle(partial / name, mode)
            for name in sorted(names, key=lambda name: _place(str(name), last)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).replace(folder / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _place(name: str, last: Sequence[str]) -> int:
    return last.index(name) if name in last else -1


def _new_file(path: Path) -> int:
    """Make an empty file, also in the place of one that was left behind, and return the mode that it has."""
    path.unlink(missing_ok=True)
    path.touch()
    return stat.S_IMODE(path.stat().st_mode)


def _settle(path: Path, mode: int) -> None:
    """Give a finished file its mode, and wait until it is on the disk."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder with those above it; a block that raises leaves none of them in which there is nothing."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            if folder in missing and [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            for each in missing:
                each.rmdir()
        raise


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder`` to write to; when the block ends, it takes the name.

    Whoever reads ``folder`` sees all of it or nothing. A block that raises leaves nothing; what a killed process left
    beside is removed by the next that writes the same folder.

    Args:
        folder: must not exist, or be empty.

    Raises:
        DiskError: the disk is full, or refuses.
    """
    folder = folder.resolve()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(folder):
            partial.mkdir(parents=True)
            yield partial
            partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, content: str) -> None:
    """Write a text in UTF-8 so that the file is always complete; see ``replacing``."""
    with replacing(path) as partial:
        partial.write_text(content, encoding="utf-8")


def write_page(path: Path, content: str) -> None:
    """Write a text as ``write_whole`` does, in a folder that is made where it is missing."""
    with made(path.parent):
        write_whole(path, content)


def checksum(path: Path, *, skip: int = 0, size: int | None = None, start: int = 0) -> int:
    """Return the CRC-32 of a part of a file: cheap, and different after any flipped byte.

    Args:
        path: the file.
        skip: bytes before the part.
        size: bytes of the part; None goes to the end.
        start: the checksum of what comes before the part, to go on with it.

    Raises:
        OSError: the file cannot be read.
    """
    left = path.stat().st_size - skip if size is None else size
    with path.open("rb", buffering=0) as file:
        file.seek(skip)
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            start, left = zlib.crc32(block, start), left - len(block)
    return start


@contextmanager
def locked(folder: Path, what: str, refusal: type[OpenVSEError]) -> Iterator[None]:
    """Hold the lock of a folder while the block runs, so that no other process writes there.

    The kernel lets go of the lock when the process ends, however it ends. Reading needs no lock.

    Args:
        folder: the folder, which must exist.
        what: the kind of folder as the message calls it, for instance "feature store".
        refusal: the error to raise when another process writes.

    Raises:
        DiskError: the disk is full, or refuses.
    """
    import fcntl  # POSIX only

    _let_go_in_children()
    with writing(folder):
        file = (folder / LOCK).open("ab+", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise refusal(
                f"{what} {folder} is being written by process {file.read().decode()}: wait for its end, or stop it"
            ) from error
        with writing(folder):
            file.truncate(0)
            file.write(str(os.getpid()).encode())
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
