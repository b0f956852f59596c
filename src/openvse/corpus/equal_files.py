"""Files with the same content, which are one image under several names. Most differ before they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from openvse.errors import BadImageError
from openvse.media.packed import FileSlice, ImageFile, content_digest
from openvse.types import OnProgress

_TAIL_BYTES = 4096


def equal_content(
    files: Sequence[ImageFile],
    positions: Iterable[int] | None = None,
    *,
    worth: Callable[[Sequence[int]], bool] = lambda group: len(group) > 1,
    progress: OnProgress | None = None,
) -> list[list[int]]:
    """Find files with equal bytes, without missing and empty ones and without groups that are not ``worth`` it.

    Most files differ in their size or last bytes. Only files that agree in both are read in full.
    """
    groups = [list(range(len(files)) if positions is None else positions)]
    for work, key in (("sizes of files", _size), ("ends of files", _tail), ("equal files", content_digest)):
        total, done, left = sum(map(len, groups)), 0, groups
        groups = []
        for group in left:
            groups += [part for part in _divided(group, files, key) if worth(part)]
            done += len(group)
            if progress is not None:
                progress(f"comparing {work}", done, total)
    return sorted(groups)


def _divided(
    group: Iterable[int], files: Sequence[ImageFile], key: Callable[[ImageFile], Hashable]
) -> Iterable[list[int]]:
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in group:
        with suppress(OSError, BadImageError):  # that a file is missing is reported elsewhere
            parts[key(files[number])].append(number)
    parts.pop(0, None)  # empty files are no images
    return parts.values()


def _size(file: ImageFile) -> Hashable:
    if isinstance(file, Path):
        return file.stat().st_size
    return file.size if isinstance(file, FileSlice) else file.digest()


def _tail(file: ImageFile) -> bytes:
    if isinstance(file, Path):
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return content.read()
    return file.read_bytes()[-_TAIL_BYTES:] if isinstance(file, FileSlice) else b""
