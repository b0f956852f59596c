"""Which file each item of a store was made from, and how that file was then: a stored feature may stand for it.

    sources.jsonl   beside the store's own files; id, path from the store's folder, time of the last change and bytes of
                    the file, one item a line, the last line of an item counts

A store without it, or without a line for an item, is whole: nothing is known of the file then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from openvse.errors import StoreError
from openvse.files import writing

SOURCES = "sources.jsonl"


@dataclass(frozen=True)
class Source:
    """The file that an item was made from, as it was then.

    Attributes:
        id: of the item in its store.
        modified_ns: time of the file's last change.
        size: bytes of the file.
    """

    id: str
    modified_ns: int
    size: int


class SourceLog:
    """Notes the sources of items while they are added to a store; a context manager.

    Args:
        store: folder of the store.
        anew: whether the store is empty, so that lines that are there are of another one.

    Raises:
        DiskError: the disk is full, or refuses; so does ``add``.
    """

    def __init__(self, store: Path, *, anew: bool) -> None:
        self._folder = Path(os.path.realpath(store))
        with writing(store):
            self._file = (store / SOURCES).open("wb" if anew else "ab", buffering=0)

    def __enter__(self) -> SourceLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, item: str, path: Path, status: os.stat_result) -> None:
        """Note the file of an item, and how it was before it was read."""
        where = os.path.relpath(os.path.realpath(path), self._folder)
        line = {"id": item, "path": where, "modified_ns": status.st_mtime_ns, "size": status.st_size}
        with writing(self._folder):
            # With a line end before it: the rest of a line that a kill cut off is then a line of its own.
            self._file.write(f"\n{json.dumps(line)}\n".encode())


def read_sources(store: Path) -> Mapping[Path, Source]:
    """Return the sources of a store's items by their real path; none where the store has no such file.

    Raises:
        StoreError: the file cannot be read.
    """
    folder, sources = os.path.realpath(store), dict[Path, Source]()
    try:
        lines = (store / SOURCES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{store / SOURCES} cannot be read ({error}): delete it") from error
    for line in lines:
        try:
            fields = json.loads(line)
            path = Path(os.path.normpath(os.path.join(folder, fields["path"])))  # noqa: PTH118 - real paths
            sources[path] = Source(fields["id"], fields["modified_ns"], fields["size"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a kill
    return sources
