"""The source file of each item of a store, so that stored features can replace a file that has not changed.

    sources.jsonl   one line per item, next to the store's own files: the id, the path from the store's folder, the time
                    of the last change and the size of the source file (the last line of an item counts)

A store without this file, or without a line for an item, is complete. The source is then not known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import StoreError
from openvse.files import parse_json, read_lines, writing
from openvse.media.packed import ImageFile

SOURCES = "sources.jsonl"


@dataclass(frozen=True)
class SourceFile:
    """The source file of an item at the time of its extraction: its last change in ns, its size in bytes."""

    id: str
    modified_ns: int
    size: int


class SourceLog:
    """Notes the source files of items as they are added. With ``anew``, existing lines belong to an earlier store."""

    def __init__(self, store: Path, *, anew: bool) -> None:
        self._folder = Path(os.path.realpath(store))
        with writing(store):
            self._file = (store / SOURCES).open("wb" if anew else "ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, item: str, path: Path, status: os.stat_result) -> None:
        """Note the source file of an item, with its status before it was read."""
        where = os.path.relpath(os.path.realpath(path), self._folder)
        line = {"id": item, "path": where, "modified_ns": status.st_mtime_ns, "size": status.st_size}
        with writing(self._folder):
            # The line end before it separates it from the rest of a line that a kill cut off.
            self._file.write(f"\n{json.dumps(line)}\n".encode())


def changed_since(sources: Mapping[str, SourceFile], images: Iterable[tuple[str, ImageFile]]) -> list[str]:
    """Return the ids of images whose file has changed since it was read: it has another size or a later time.

    If all files have another time, they were copied, and only sizes are compared.
    """
    sized, timed, checked = list[str](), list[str](), 0
    for item, path in images:
        if (source := sources.get(item)) is None or not isinstance(path, Path) or not path.exists():
            continue
        status, checked = path.stat(), checked + 1
        if status.st_size != source.size:
            sized.append(item)
        if (status.st_mtime_ns, status.st_size) != (source.modified_ns, source.size):
            timed.append(item)
    return sized if len(timed) == checked > 1 else timed


def read_sources(store: Path) -> Mapping[Path, SourceFile]:
    """Return a store's source files by real path, none without a list. Raise StoreError if it is unreadable."""
    folder, sources = os.path.realpath(store), dict[Path, SourceFile]()
    try:
        lines = read_lines(store / SOURCES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{store / SOURCES} cannot be read ({error}): delete it") from error
    for line in lines:
        try:
            fields = parse_json(line)
            path = Path(os.path.normpath(os.path.join(folder, fields["path"])))  # noqa: PTH118 - real paths
            sources[path] = SourceFile(fields["id"], fields["modified_ns"], fields["size"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a kill
    return sources
