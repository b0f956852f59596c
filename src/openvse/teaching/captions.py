"""The file to which teaching adds captions, a line of JSON each, while other programs may write it, too."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from openvse.errors import DataError, JsonError, decoded_text
from openvse.files import parse_json, replacing, several, sync
from openvse.indexing.scanning import METADATA
from openvse.media.names import escaped
from openvse.search.sheets import captions_beside

MOST_CHARACTERS, MOST_CAPTIONS = 1000, 20
"""The longest caption, and the most of them that are saved at once."""

_TRIES = 20
_HOW = "give sentences or names of things"


class _ChangedError(Exception):
    """Another program has changed the file since it was read."""


class CaptionFile:
    """The ``metadata.jsonl`` of a folder, or another file of such lines, which is complete at every moment.

    A change keeps every other line byte for byte. If another program has written the file since it was read, both
    changes are kept.

    Args:
        root: the folder of the images.
        file: the file to write. None is the ``metadata.jsonl`` of the folder.

    Raises:
        DataError: the folder cannot be written, has its captions in another form, or its file leads elsewhere.
    """

    def __init__(self, root: Path, file: Path | None = None) -> None:
        self.root, self.path = root, root / METADATA if file is None else file.absolute()
        remedy = "give a file of its own for what you teach: --teach FILE"
        folder = self.path.parent
        if self.path.is_symlink() or not os.access(self.path if self.path.exists() else folder, os.W_OK):
            raise DataError(f"{escaped(self.path)} is a link or cannot be written: {remedy}")
        if not os.access(folder, os.W_OK):
            raise DataError(f"the folder {escaped(folder)} cannot be written: {remedy}")
        if file is None and not self.path.exists() and captions_beside(root):
            raise DataError(f"{escaped(root)} has its captions in files other than {METADATA}: {remedy}")

    def add(self, image: Path, captions: Sequence[str]) -> bytes:
        """Save captions of an image, and return their line."""
        said = {"file_name": Path(os.path.relpath(image, self.path.parent)).as_posix(), "captions": [*captions]}
        try:
            line = f"{json.dumps(said, ensure_ascii=False)}\n".encode()
        except UnicodeEncodeError:
            raise DataError(f"{escaped(image)} has a name that is not UTF-8: rename it to teach it") from None

        def added(lines: list[bytes]) -> list[bytes]:
            ends = not lines or lines[-1].endswith(b"\n")
            return [*lines, *([] if ends else [b"\n"]), line]

        self._change(added)
        return line

    def remove(self, line: bytes) -> bool:
        """Remove the last line like this one, and return whether there was any."""
        found = False

        def removed(lines: list[bytes]) -> list[bytes]:
            nonlocal found
            places = [place for place, each in enumerate(lines) if each.rstrip(b"\r\n") == line.rstrip()]
            found = bool(places)
            return [each for place, each in enumerate(lines) if place not in places[-1:]]

        self._change(removed)
        return found

    def read(self) -> dict[str, list[str]]:
        """Return the captions that lines of this form give images of the folder, by their paths below it."""
        captions: dict[str, list[str]] = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            with suppress(DataError, JsonError, KeyError, TypeError, ValueError):
                entry = parse_json(line.decode())
                said = entry["captions"] if isinstance(entry["captions"], list) else [entry["captions"]]
                image = Path(os.path.normpath(self.path.parent / str(entry["file_name"])))
                captions.setdefault(image.relative_to(self.root).as_posix(), []).extend(map(str, said))
        return captions

    def _change(self, edit: Callable[[list[bytes]], list[bytes]]) -> None:
        """Replace the file by an edited one, again if another program was faster."""
        for _ in range(_TRIES):
            with suppress(_ChangedError):
                self._replace(edit)
                return
        raise DataError(f"{escaped(self.path)} is changed by another program all the time: try again")

    def _replace(self, edit: Callable[[list[bytes]], list[bytes]]) -> None:
        before = self._state()
        content = self.path.read_bytes() if before else b""
        decoded_text(content, self.path)  # a line in UTF-8 would make a file of another encoding unreadable
        with replacing(self.path, keep_mode=True) as partial:
            partial.write_bytes(b"".join(edit(content.splitlines(keepends=True))))
            sync(partial)
            if self._state() != before:
                raise _ChangedError

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def checked_captions(given: str | Iterable[str]) -> list[str]:
    """Return captions without spaces around them and line ends in them. Raise DataError for what is none."""
    captions = [" ".join(each.split()) for each in several(given, "captions")]
    if not captions or not all(captions):
        raise DataError(f"a caption is empty: {_HOW}")
    if len(captions) > MOST_CAPTIONS or max(map(len, captions)) > MOST_CHARACTERS:
        raise DataError(
            f"{len(captions):,} captions, the longest with {max(map(len, captions)):,} characters: give at most "
            f"{MOST_CAPTIONS} with {MOST_CHARACTERS:,} each"
        )
    for each in captions:
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in each):
            raise DataError(f"the caption {escaped(each[:40])} holds control characters: {_HOW}")
    return captions
