"""The content of a folder: images, clips if wanted, and files that are left out, counted by kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openvse.errors import DataError
from openvse.media.names import escaped, foreign_kind, is_image, is_video_name, remedy

LINE_BREAK = "with a line break in the name"
VIDEO = "video"
_REMEDIES = {
    LINE_BREAK: "rename files whose names have line breaks",
    VIDEO: "videos need a model of clips",
}


@dataclass(frozen=True)
class LeftOut:
    """Files that look like images or clips and are left out.

    Attributes:
        files: the files of each kind ("video", "HEIC", "SVG", ...), in the order of their names.
    """

    files: dict[str, list[Path]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files)

    def counts(self) -> str:
        """Return the number of files of each kind: "27 videos, 3 HEIC, 1 SVG"."""
        ordered = sorted(self.files.items(), key=lambda item: -len(item[1]))
        return ", ".join(f"{len(paths):,} {_plural(kind, len(paths))}" for kind, paths in ordered)

    def describe(self) -> str:
        """Return one line: the counts, what to do about each kind, and one file by name."""
        remedies = dict.fromkeys(_REMEDIES.get(kind) or remedy(kind) for kind in self.files)
        first = next(iter(self.files.values()))[0]
        return f"left out {self.counts()}: {'; '.join(remedies)} (first: {escaped(first)})"


@dataclass(frozen=True)
class Listing:
    """The images and clips below a folder.

    Attributes:
        paths: the paths of the images and clips, sorted; each begins with the folder.
        left_out: similar files that are left out.
        unreadable: folders whose content the system refused to list.
    """

    paths: list[Path]
    left_out: LeftOut
    unreadable: list[Path] = field(default_factory=list)


def list_media(
    folder: str | Path, *, videos: bool = False, ignored: Callable[[str, bool], bool] | None = None
) -> Listing:
    """List the images below a folder, recursively and sorted; hidden files and folders are skipped.

    Args:
        folder: the folder to search.
        videos: whether to list videos too; otherwise they are left out and counted.
        ignored: says of a path below the folder, with forward slashes, and of whether it is a folder, that it is
            skipped as hidden ones are.

    Raises:
        DataError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{escaped(root)}: there is no such folder; give a folder of images")
    paths: list[Path] = []
    unreadable: list[Path] = []
    left_out: dict[str, list[Path]] = {}
    for path in sorted(walk_files(root, ignored, unreadable)):
        kind = kind_left_out(path.name, videos=videos)
        if kind:
            left_out.setdefault(kind, []).append(path)
        elif is_image(path.name) or (videos and is_video_name(path.name)):
            paths.append(path)
    return Listing(paths, LeftOut(left_out), unreadable)


def walk_files(
    root: Path,
    ignored: Callable[[str, bool], bool] | None = None,
    unreadable: list[Path] | None = None,
) -> Iterator[Path]:
    """Yield the files below a folder; hidden files and folders are skipped, links to folders are not followed.

    Args:
        root: the folder.
        ignored: see ``list_media``.
        unreadable: the folders that the system refuses to list are appended to it.
    """

    def refused(error: OSError) -> None:
        if unreadable is not None:
            unreadable.append(Path(os.fsdecode(error.filename or root)))

    for parent, folders, names in os.walk(root, onerror=refused):
        below = os.path.relpath(parent, root).replace(os.sep, "/") if ignored else ""
        prefix = "" if below in ("", ".") else f"{below}/"
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not (ignored and ignored(prefix + name, True))
        ]
        for name in names:
            if not name.startswith(".") and not (ignored and ignored(prefix + name, False)):
                yield Path(parent, name)


def kind_left_out(name: str, *, videos: bool) -> str:
    """Return the kind of a file that is left out; "" for one that is listed, or is neither image nor clip."""
    if "\n" in name:
        flat = name.replace("\n", " ")
        return LINE_BREAK if is_image(flat) or is_video_name(flat) else ""
    if is_video_name(name):
        return "" if videos else VIDEO
    return foreign_kind(name)


def _plural(kind: str, count: int) -> str:
    return "videos" if kind == VIDEO and count != 1 else kind
