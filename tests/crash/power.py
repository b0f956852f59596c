"""What a power cut can leave, played from the recorded calls of a command.

What was synced is on the disk. Of the rest anything may be: after each call the file system is made anew with what was
not synced kept, dropped, or dropped for one file alone; and with the newest names kept or dropped. As on ext4, XFS and
Btrfs, a sync of a file brings its own name along, and names change in the order in which they were changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from tests.crash.tries import Call

_CONTENT = ("write", "cut", "reserve")


def cuts(calls: Sequence[Call]) -> list[int]:
    """Return after how many calls a power cut can leave something new: before each name, and each sync."""
    return [place for place, call in enumerate(calls) if call.name in ("rename", "unlink", "sync", "rmdir")]


def states(calls: Sequence[Call], cut: int) -> Iterator[tuple[str, list[Call]]]:
    """Yield the ways in which the first calls may have reached the disk: each with a name, and the calls that have."""
    done = calls[:cut]
    content, names = _unsynced(done)
    seen: set[frozenset[int]] = set()
    newest = {call.path for call in done if call.number in content}
    lost = {
        "no content": content,
        "no names": names | content,
        "no newest name": {max(names)} if names else set(),
        **{
            f"no content of {PurePath(path).name}": {n for n in content if calls[n - 1].path == path} for path in newest
        },
    }
    for name, dropped in lost.items():
        if dropped and frozenset(dropped) not in seen:
            seen.add(frozenset(dropped))
            yield name, [call for call in done if call.number not in dropped]


def _unsynced(done: Sequence[Call]) -> tuple[set[int], set[int]]:
    """Return the numbers of the calls that need not be on the disk: changes of content, and of names."""
    content: dict[int, str] = {}
    names: dict[int, tuple[str, str]] = {}
    for call in done:
        if call.name in _CONTENT:
            content[call.number] = call.path
        elif call.name == "sync":
            content = {number: path for number, path in content.items() if path != call.path}
            synced = [number for number, both in names.items() if _concerns(call.path, both)]
            if synced:  # names change in their order
                names = {number: both for number, both in names.items() if number > max(synced)}
        else:
            names[call.number] = (call.path, call.other)
            if call.name == "rename":
                content = {n: call.path if path == call.other else path for n, path in content.items()}
    return {*content}, {*names}


def _concerns(synced: str, both: tuple[str, str]) -> bool:
    return any(path and synced in (path, str(PurePath(path).parent)) for path in both)


def play(before: Path, calls: Sequence[Call], folder: Path) -> None:
    """Make a folder what it was before, and then do some calls again."""
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, folder, symlinks=True)
    for call in calls:
        path, other = folder / call.path, folder / call.other
        if call.name == "create":
            if path.parent.is_dir():
                path.touch()
        elif call.name == "mkdir":
            path.mkdir(exist_ok=True, parents=True)
        elif call.name in ("write", "cut", "reserve"):
            if path.is_file():
                _change(path, call)
        elif call.name == "rename":
            if other.exists() and path.parent.is_dir():
                other.replace(path)
        elif call.name == "link":
            if other.exists() and not path.exists():
                path.hardlink_to(other)
        elif call.name == "unlink":
            path.unlink(missing_ok=True)
        elif call.name == "rmdir" and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _change(path: Path, call: Call) -> None:
    with path.open("r+b") as file:
        if call.name == "write":
            file.seek(call.offset)
            file.write(call.content)
        elif call.name == "cut":
            file.truncate(call.offset)
