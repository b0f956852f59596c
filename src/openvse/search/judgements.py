"""Judgements of hits: which items fit a query and which do not, as people said, a line of JSON for each."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from openvse.errors import DataError
from openvse.files import parse_json, sync, whole_characters, writing
from openvse.media.names import escaped

JUDGEMENTS = "judgements.jsonl"
"""The name of the file in the folder of an index."""

_MOST_BYTES = 64 << 20
_KNOWN = {True: True, False: False, None: None}


class Judgements:
    """The judgements in a file, which need not exist. Lines are only added, and the last on a query and item counts.

    A line is ``{"query": "a dog", "item": "holiday/0001.jpg", "fits": true}``. An item is named by its path below the
    indexed folder, and ``null`` takes back what was said of it. A line that a stopped process, or a full disk, left
    unfinished is left out, and the next one begins on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None
        self._known: dict[str, dict[str, bool]] = {}

    @property
    def state(self) -> object:
        """A value that changes with every judgement. Raise DataError if the file is a link, no file, or very large."""
        if not os.path.lexists(self.path):
            return None
        found = self.path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise DataError(f"{escaped(self.path)} is a link, no file or larger than {_MOST_BYTES:,} bytes: remove it")
        return found.st_ino, found.st_mtime_ns, found.st_size

    def every(self) -> Mapping[str, Mapping[str, bool]]:
        """Return, for each query, whether the judged items fit, in the order in which they were judged last."""
        if (state := self.state) != self._seen:
            known: dict[str, dict[str, bool]] = {}
            for line in self.path.read_bytes().splitlines() if state else ():
                with suppress(ValueError, KeyError, TypeError, DataError):
                    said = parse_json(line.decode())
                    query, item, fits = plain(said["query"]), str(said["item"]), _KNOWN[said["fits"]]
                    known.setdefault(query, {}).pop(item, None)
                    if fits is not None:
                        known[query][item] = fits
            self._seen, self._known = state, {query: items for query, items in known.items() if items}
        return self._known

    def of(self, query: str) -> Mapping[str, bool]:
        """Return whether the judged items fit a query."""
        return self.every().get(plain(query), {})

    def add(self, query: str, item: str, fits: bool | None) -> None:
        """Add a judgement, which is on the disk afterwards. Raise DiskError if it cannot be: all others stay."""
        if not plain(query):
            raise DataError("a judgement needs the sentence that was searched: give it as the query")
        _ = self.state
        said = {"query": plain(query), "item": whole_characters(item), "fits": fits}
        with writing(self.path, "the judgements in it stay"), self.path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            is_torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * is_torn + json.dumps(said, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync(self.path.parent)


def plain(query: str) -> str:
    """Return a query as judgements name it: without capitals, and with one space between words."""
    return " ".join(whole_characters(query).casefold().split())
