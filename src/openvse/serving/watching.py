"""Updates an index while it is served, whenever something in its folders changes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from openvse.errors import message_of
from openvse.media.names import escaped
from openvse.pipeline import WorkProgress
from openvse.search.updating import index

_OPTIONS: dict[str, Any] = {
    "step": 300,  # changes count together until nothing more comes for so many milliseconds
    "debounce": 3000,
    "rust_timeout": 1000,  # between two looks at which folders are there
    "yield_on_timeout": True,
    "raise_interrupt": False,
    "ignore_permission_denied": True,
}
_RETRY_S, _SCAN_S = 5.0, 60.0
_READ_S = 10.0  # of text in images, before the folders are looked at again
_NAMED = 3

_logger = logging.getLogger(__name__)


class _EndedError(Exception):
    """The server ends while images are embedded. Finished embeddings are kept."""


class _EnoughError(Exception):
    """New images come before the text of unread ones. Finished readings are kept."""


class FolderWatch:
    """Updates an index on a thread of its own, as ``openvse index`` does, whenever its folders change.

    The index is locked only meanwhile, and an update waits while another process writes it. The items of a missing
    folder stay, and the folder is watched again once it is back. The first update is for earlier changes.
    """

    def __init__(self, index: Path, folders: Callable[[], Sequence[Path]], model: Callable[[], Any]) -> None:
        self._index, self._folders, self._model = index.resolve(), folders, model
        self._ending, self._reading_since, self._told = Event(), math.inf, dict[str, str]()
        self._away: list[Path] = []  # folders inside, which may come back as other ones
        self._thread = Thread(target=self._run, name="openvse-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread. Finished embeddings are kept."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        from watchfiles import watch

        due = True
        while not self._ending.is_set():
            there = self._there()
            try:
                for changes in watch(*there, watch_filter=self._counts, stop_event=self._ending, **_OPTIONS):
                    due = (due or bool(changes)) and not self._update()
                    if self._there() != there:
                        due = True
                        break
            except Exception as error:  # the system may watch no more folders; the server goes on
                self._warn(
                    f"the folders cannot be watched, and are looked at every {_SCAN_S:g} seconds: {message_of(error)}",
                    about="watching",
                )
                due = not self._update()
                self._ending.wait(_SCAN_S)

    def _there(self) -> dict[Path, tuple[int, int]]:
        """Return the existing folders, each with a value that changes when another takes its place."""
        folders = {}
        for folder in (*self._folders(), *self._away):
            with suppress(OSError):
                status = folder.stat()
                folders[folder] = (status.st_dev, status.st_ino)
        return folders

    def _counts(self, _: object, path: str) -> bool:
        """Return whether a changed file is none of the index, which may be inside a folder of images."""
        return not Path(path).is_relative_to(self._index)

    def _update(self) -> bool:
        """Do what ``openvse index`` does on the same folders. Return whether all is done, after a wait if it failed."""
        try:
            self._reading_since = math.inf
            report = index(self._model(), self._folders(), self._index, progress=self._go_on).items
        except _EnoughError:
            return False
        except _EndedError:
            return True
        except Exception as error:  # whatever it is, the server goes on
            self._warn(f"the index is not updated yet: {message_of(error)}")
            return self._ending.wait(_RETRY_S)
        self._away = [path for path, _ in report.unreached if path.is_dir()]
        lines = [f"{escaped(path)}: {reason}" for path, reason in (*report.unreached, *report.failed)]
        lines += report.metadata_problems
        more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        self._warn("; ".join(lines[:_NAMED]) + more)
        return True

    def _go_on(self, step: str, _: WorkProgress) -> None:
        if self._ending.is_set():
            raise _EndedError
        if step == "text":
            self._reading_since = min(self._reading_since, time.monotonic())
            if time.monotonic() - self._reading_since > _READ_S:
                raise _EnoughError

    def _warn(self, line: str, *, about: str = "update") -> None:
        """Warn of a fault once, until it changes. "" is the end of it."""
        if line and line != self._told.get(about):
            _logger.warning("%s", line)
        self._told[about] = line
