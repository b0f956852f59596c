"""What a user says of files: the lines of ``metadata.jsonl`` at the top of an indexed folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openvse.index.database import Database, Root
from openvse.media.segments import file_of

FILE = "metadata.jsonl"

_NAMES = ("file_name", "image", "path", "video")


@dataclass(frozen=True)
class Metadata:
    """The lines of a ``metadata.jsonl``.

    Attributes:
        state: time and size of the file; "" where there is none.
        lines: what is said of each file, as a JSON object, by its path below the folder; lines of one file are joined.
        bad_lines: numbers of the lines that are no objects that name a file.
    """

    state: str = ""
    lines: dict[str, str] = field(default_factory=dict)
    bad_lines: tuple[int, ...] = ()


def state_of(folder: Path) -> str:
    """Return the time and size of a folder's ``metadata.jsonl``, "" where there is none."""
    try:
        status = (folder / FILE).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def read_metadata(folder: Path) -> Metadata:
    """Read a folder's ``metadata.jsonl``; bad lines are left out and counted, never a reason to stop."""
    state = state_of(folder)
    if not state:
        return Metadata()
    joined: dict[str, dict[str, object]] = {}
    bad = []
    for number, entry in _entries(folder / FILE):
        name = next((entry[key] for key in _NAMES if isinstance(entry.get(key), str)), None)
        if isinstance(name, str):
            joined.setdefault(name.removeprefix("./"), {}).update(entry)
        else:
            bad.append(number)
    lines = {name: json.dumps(entry, ensure_ascii=True) for name, entry in joined.items()}
    return Metadata(state, lines, tuple(bad))


def setting_of(root: int) -> str:
    """Return the name under which an index notes which state of a root's file it has read."""
    return f"metadata {root}"


def describe(database: Database, root: Root, said: Metadata) -> None:
    """Note in a transaction what is said of the items of a root; only what differs is written."""
    sql = "SELECT id, metadata FROM items WHERE root = ?"
    changed = []
    for item_id, before in database.read(sql, (root.number,)):
        now = said.lines.get(file_of(root.name_of(str(item_id))))
        if now != before:
            changed.append((now, str(item_id)))
    database.describe(changed)
    database.set(setting_of(root.number), said.state)


def _entries(file: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number and the object of each line; an empty object for a line that is none."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line, parse_constant=lambda _: None)
                except (ValueError, RecursionError):
                    entry = None
                yield number, entry if isinstance(entry, dict) else {}
    except OSError:
        return
