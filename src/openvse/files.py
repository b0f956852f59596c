"""Files that are complete at every moment, folders that one process at a time writes to, and readers of text."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import re
import shutil
import signal
import stat
import threading
import time
import zlib
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

from openvse.errors import DataError, DiskError, JsonError, ModelError, OpenVSEError, decoded_text

LOCK = "writer.lock"
"""The lock file of a folder. The process that holds the lock may write there. The file itself is never removed."""

_GONE = ".gone"  # in a set that is ready: what of the earlier set is still to be removed

_UNCHANGED = "the earlier files are unchanged"

_held: set[IO[bytes]] = set()

_BLOCK, _MAX_CELL = 1 << 20, 1 << 24

NO_ROOM = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG")}
"""The error numbers of a full disk."""

_REFUSALS = NO_ROOM | {errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}

STOPS: frozenset[signal.Signals] = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that ask a process to end."""


def refusal_of_disk(error: BaseException | None) -> str | None:
    """Return the system's reason if an error was caused by a full or unwritable disk, and None otherwise.

    Libraries that write files hide the error of the system. PyTorch raises one about its own format, and Rust libraries
    put it into the text of their own class.
    """
    while error is not None:
        if isinstance(error, DiskError):
            return error.strerror
        if isinstance(error, OSError) and error.errno is not None and error.errno in _REFUSALS:
            return os.strerror(error.errno)
        if (code := re.search(r"\(os error (\d+)\)", str(error))) and int(code[1]) in _REFUSALS:
            return os.strerror(int(code[1]))
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def writing(path: Path, state: str = "") -> Iterator[None]:
    """Raise DiskError, in one line about ``path``, if any library meets a full or unwritable disk.

    ``state`` describes the files afterwards, if the writer knows it.
    """
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        if (reason := refusal_of_disk(error)) is None:
            raise
        told = f"{path} cannot be written ({reason}): make room or choose another place, and run again"
        raise DiskError(f"{told}{state and f'; {state}'}", reason) from error


@contextmanager
def stops_wait() -> Iterator[None]:
    """Let a Ctrl-C, or another signal that should raise an exception here, wait for the end of the block.

    Some libraries break if an exception comes at any line. ``torch.save``, for one, swallows it at one line (a bare
    ``except`` of ``copyreg``) and ends the process at others (in C++ code that closes the file).
    """
    came: list[int] = []
    ended = False
    handlers = {each: handler for each in STOPS if callable(handler := signal.getsignal(each))}

    def wait(number: int, frame: FrameType | None) -> None:
        if ended:  # a signal while the handlers are put back
            handlers[signal.Signals(number)](number, frame)
        came.append(number)

    try:
        with stops_handled(wait, callable):
            try:
                yield
            finally:
                ended = True
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def stops_handled(handle: Callable[[int, FrameType | None], None], wanted: Callable[[Any], bool]) -> Iterator[None]:
    """Let a function handle, in the block, each of ``STOPS`` whose present handler is ``wanted``."""
    is_main = threading.current_thread() is threading.main_thread()  # Python only allows handlers there
    present = {each: signal.getsignal(each) for each in STOPS if is_main}
    replaced = {each: handler for each, handler in present.items() if wanted(handler)}
    try:
        for each in replaced:
            signal.signal(each, handle)
        yield
    finally:
        for each, handler in replaced.items():
            signal.signal(each, handler)


@contextmanager
def replacing(path: Path, *, keep_mode: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to. When the block ends, the file is renamed to ``path``.

    A reader of ``path`` always sees a complete file, the old or the new one, even if the writer is stopped. A block
    that raises only leaves the old file. The new file is on the disk before the rename, so that a power cut cannot
    leave an empty file, and the rename is there before anything that follows. Its permissions follow from the umask,
    even if a library writes it through a private temporary file, or with ``keep_mode`` are those of the old file. The
    folder must exist. See ``writing`` for errors.
    """
    # Every process uses the same name, so that killed processes leave at most one file.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path, _UNCHANGED):
            mode = _new_file(partial)
            if keep_mode and path.exists():
                mode = stat.S_IMODE(path.stat().st_mode)
                partial.chmod(mode)
            yield partial
            _finish(partial, mode)
            partial.replace(path)
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_files(folder: Path, named: str, gone: Iterable[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to write a set to. When the block ends, its files take their places below ``folder``.

    Files that belong together are a set, and one of them names it. Nothing in ``folder`` changes before all files are
    complete and on the disk. Then one rename makes the new set the present one, and ``settle`` puts its files at their
    places. If a writer is stopped in between, the next reader or writer settles the set. So at every moment a reader
    has the whole old set or the whole new one. A block that raises leaves the old set, or no folder if there was none.
    Of the earlier set ``gone`` is removed where the new one lacks it. All else stays.
    """
    partial, ready = _places_of_set(folder, named)
    with made(folder):
        settle(folder, named)
        try:
            with writing(folder, _UNCHANGED):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                mode = _new_file(partial / _GONE)
                yield partial
                (partial / _GONE).write_text(json.dumps(sorted(gone)))
                for path in sorted(partial.rglob("*")):
                    sync(path) if path.is_dir() else _finish(path, mode)
                sync(partial)
                partial.rename(ready)
        except DiskError as error:  # about a file of the new set
            raise DiskError(str(error).replace(str(partial), str(folder)), str(error.strerror)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        settle(folder, named)


def settle(folder: str | Path, named: str) -> tuple[int, int] | None:
    """Finish the work that ``replacing_files`` has begun in a folder, and return which set is there, or None.

    The file that names the set is removed first and comes last, so a program that does not call this function finds no
    set in between. Several processes may settle the same set. See ``check_same`` for the result.
    """
    place = Path(folder)
    _, ready = _places_of_set(place, named)
    if ready.is_dir():
        with writing(place, f"the new files are whole, and the next command puts those in {ready} at their places"):
            sync(place)
            with suppress(FileNotFoundError):  # another process settles it, too
                _put_into_place(place, ready, named)
    return _identity(place / named)


def check_same(folder: Path, named: str, found: tuple[int, int] | None) -> None:
    """Raise ModelError if another set has replaced the one that ``settle`` found and that was read since."""
    if _identity(folder / named) != found:
        raise ModelError(f"{folder} was replaced while it was read: open it again")


def is_free(folder: Path, named: str) -> bool:
    """Return whether a folder is empty except for the rest of a stopped ``replacing_files``. Settle it if possible."""
    settle(folder, named)
    return not folder.exists() or (folder.is_dir() and {*folder.iterdir()} <= {_places_of_set(folder, named)[0]})


def _places_of_set(folder: Path, named: str) -> tuple[Path, Path]:
    """Return the place of a set's files before they are whole, and from then on until they are at their places."""
    return folder / f".{named}.new", folder / f".{named}.ready"


def _put_into_place(folder: Path, ready: Path, named: str) -> None:
    files = (path for path in ready.rglob("*") if not path.is_dir() and path.name != _GONE)
    new = sorted((path.relative_to(ready) for path in files), key=lambda path: (str(path) == named, path))
    if (ready / _GONE).exists():
        for name in (named, *json.loads((ready / _GONE).read_text()), *new):
            old, aside = folder / name, folder / f".{Path(name).name}.gone"
            if old.is_dir() and not old.is_symlink():
                old.rename(aside)  # so that nobody finds half of it
            shutil.rmtree(aside) if aside.is_dir() else old.unlink(missing_ok=True)
        (ready / _GONE).unlink()
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (ready / name).replace(folder / name)
    shutil.rmtree(ready, ignore_errors=True)
    sync(folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _new_file(path: Path) -> int:
    """Make an empty file, replacing an old one, and return its mode."""
    path.unlink(missing_ok=True)
    path.touch()
    return stat.S_IMODE(path.stat().st_mode)


def _finish(path: Path, mode: int) -> None:
    """Give a finished file its mode, and wait until it is on the disk."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, where the system and the disk know how."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder and its parents. If the block raises, the empty ones among them are removed."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            if folder in missing and [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            for each in missing:
                each.rmdir()
        raise


def refuse_there(paths: Iterable[Path], remedy: str) -> None:
    """Raise OpenVSEError before any work if it would replace one of these files, or the set it names, unasked."""
    there = [str(path) for path in paths if settle(path.parent, path.name) or path.is_symlink()]
    if there:
        raise OpenVSEError(f"{', '.join(there)} {'are' if len(there) > 1 else 'is'} already there: {remedy}")


def write_whole(path: Path, content: str) -> None:
    """Write a text in UTF-8, with ``whole_characters``, so that the file is always complete. See ``replacing``."""
    with replacing(path) as partial:
        partial.write_text(whole_characters(content), encoding="utf-8")


MAX_JSON_CHARACTERS = 1 << 24
"""The longest text of JSON to read, unless its reader allows more."""

_MAX_JSON_DEPTH = 100


def parse_json(
    text: str,
    *,
    hook: Callable[[dict[str, Any]], Any] | None = None,
    most: int = MAX_JSON_CHARACTERS,
    finite: bool = False,
) -> Any:
    """Return the content of JSON text from anybody. With ``finite``, None replaces NaN or 1e999.

    It raises JsonError if the text is not JSON, too long, or nested more deeply than any data are.
    """
    if len(text) > most:
        raise JsonError(f"{len(text):,} characters of JSON are too many: at most {most:,} are read")
    try:
        hooks: dict[str, Any] = {"parse_float": _finite, "parse_constant": lambda _: None} if finite else {}
        tree = json.loads(text, object_hook=hook, **hooks)
    except RecursionError:
        raise JsonError(f"JSON of more than {_MAX_JSON_DEPTH} levels is not read") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON ({error.msg}, line {error.lineno}, column {error.colno})") from error
    except ValueError as error:  # of a number with thousands of digits
        raise JsonError(f"not JSON ({error})") from error
    level = [tree] if text.count("[") + text.count("{") > _MAX_JSON_DEPTH else []
    for _ in range(_MAX_JSON_DEPTH if level else 0):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise JsonError(f"JSON of more than {_MAX_JSON_DEPTH} levels is not read")
    return tree


def read_json(
    path: Path, *, most: int = MAX_JSON_CHARACTERS, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the content of a JSON file from anybody. See ``parse_json`` and ``read_text``."""
    with path.open("rb") as file:
        content = file.read(min(path.stat().st_size, most) + 1)  # a device has no size, and may have no end
    if len(content) > most:
        raise JsonError(f"more than {most:,} bytes of JSON are not read")
    return parse_json(decoded_text(content, path), hook=hook, most=most)


_QUOTED = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_LIST = re.compile(rf"[\[(]\s*(?:{_QUOTED}[\s,]*)+[\])]", re.DOTALL)
_ENCODED = re.compile(r"""(array\()?[\[{]\s*u?["'\[{]""")


def decoded_cell(text: str) -> Any:
    r"""Return the list or object that a cell encodes, as JSON or as Python and NumPy print texts, or else the cell.

    It raises JsonError for a text that begins like one and cannot be read.

    Examples:
        >>> decoded_cell('["a dog", "a cat"]'), decoded_cell("['a dog' \"it's a cat\"]"), decoded_cell("[music]")
        (['a dog', 'a cat'], ['a dog', "it's a cat"], '[music]')
    """
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        with suppress(JsonError):
            return parse_json(stripped)
    with suppress(ValueError, SyntaxError):
        if _LIST.fullmatch(stripped):
            return [literal_eval(each) for each in re.findall(_QUOTED, stripped, re.DOTALL)]
    if _ENCODED.match(stripped):
        raise JsonError(f'{stripped[:40]!r} begins like a list or object: write a sentence, or ["a dog", "a cat"]')
    return text


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def write_page(path: Path, content: str) -> None:
    """Write a text as ``write_whole`` does, and make its folder if it is missing."""
    with made(path.parent):
        write_whole(path, content)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte-order mark. Another encoding is a TextError."""
    return decoded_text(path.read_bytes(), path)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file. See ``read_text`` and ``split_lines``."""
    *lines, rest = split_lines(read_text(path))
    return [*lines, rest] if rest else lines


def split_lines(text: str) -> list[str]:
    r"""Return the parts before, between and after the line ends of a text.

    Only ``\n`` and ``\r\n`` end a line, since captions and strings of JSON may hold Unicode's other line separators. In
    a text without ``\n``, ``\r`` does, as on the first Macintosh.
    """
    text = text.replace("\r\n", "\n")
    return text.split("\n" if "\n" in text else "\r")


def csv_rows(lines: Sequence[str]) -> Any:
    """Return the reader of a table (``csv.reader``), between whose columns is a comma, semicolon, tab or "|"."""
    delimiter = max(",", ";", "\t", "|", key=lines[0].count) if lines else ","
    csv.field_size_limit(_MAX_CELL)
    return csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)


def text_lines(lines: Iterable[bytes], where: str | Path) -> Iterator[str]:
    """Yield the lines of a large file that is opened for bytes as ``read_lines`` does, one at a time."""
    offset = 0
    for number, line in enumerate(lines, start=1):
        text = decoded_text(line, where, first_line=number, offset=offset)
        yield text.removesuffix("\n").removesuffix("\r")
        offset += len(line)


def several(given: object, what: str, kinds: tuple[type, ...] = (str,)) -> list[Any]:
    """Return any number of texts as a list. A single text is a sequence of one.

    A table, bytes or an element of another kind is a DataError, which names ``what`` they are, such as "captions".
    """
    if isinstance(given, kinds):
        return [given]
    advice = f"give a text or a list of texts as {what}, such as one column of a table"
    is_table = isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names")
    is_one = isinstance(given, bytes | bytearray) or getattr(given, "ndim", 1) == 0
    if is_table or is_one or not isinstance(given, Iterable):
        raise DataError(f"{what} has the type {type(given).__name__}: {advice}")
    listed = list(given)
    for number, each in enumerate(listed):
        if not isinstance(each, kinds):
            raise DataError(f"{what}: number {number} has the type {type(each).__name__}: {advice}")
    return listed


def user_cache() -> Path:
    """Return the folder of openvse in the user's cache (``XDG_CACHE_HOME``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "openvse"


def given_path(given: object, what: str) -> Path:
    """Return a path. Raise DataError if ``what`` is none, or "", which would be the folder of work."""
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise DataError(f"{what} is {given!r:.40}: give a path, such as 'my/folder'")
    return Path(given)


def whole_characters(text: str) -> str:
    r"""Return a text in which U+FFFD replaces each half of a surrogate pair, which no file or tokenizer can hold.

    Halves come from escapes of JSON, and from arguments and names that are not UTF-8.

    Example:
        >>> print(ascii(whole_characters("caf\udce9 \ud83d\ude00")))
        'caf\ufffd \U0001f600'
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def checksum(path: Path, *, skip: int = 0, size: int | None = None, start: int = 0) -> int:
    """Return the CRC-32 of a part of a file, which is cheap and changes with any single byte.

    It continues ``start``, the checksum of earlier parts. Without a size the part goes up to the end.
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

    The kernel releases the lock when the process ends, in whatever way. Reading does not need the lock. A ``refusal``
    about ``what``, for instance a "feature store", is raised if another process writes or the locks of POSIX are
    missing. (The package ``filelock`` does not tell who holds a lock, and Windows lacks more than locks: ``os.preadv``,
    and renaming over a file that is read.)
    """
    try:
        import fcntl
    except ImportError as error:  # on Windows
        raise refusal(f"{what} {folder} cannot be locked without POSIX: write it on Linux, macOS or WSL") from error
    _let_go_in_children()
    with writing(folder):
        file = (folder / LOCK).open("ab+", buffering=0)
    with file:
        for left in range(20, -1, -1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                owner = os.pread(file.fileno(), 20, 0).decode()
                if not left or os.path.exists(f"/proc/{owner}/exe"):  # noqa: PTH110 - not for other users' processes
                    told = f"{what} {folder} is being written by process {owner}: wait for its end, or stop it"
                    raise refusal(told) from error
                time.sleep(0.05)  # the owner was killed while it forked a process, which lets go of the lock next
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
    """Release the locks in forked processes, such as the workers of a data loader, which could outlive the owner."""

    def let_go() -> None:
        while _held:
            _held.pop().close()

    os.register_at_fork(after_in_child=let_go)
