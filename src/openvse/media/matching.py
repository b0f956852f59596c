"""Files by the names that tables write: exactly, or in another Unicode form or case, or with backslashes."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_NEAR = 3  # files that a path is told to be near


def composed(name: str) -> str:
    """Return a name in Unicode's form NFC, because macOS writes decomposed names (NFD) and editors composed ones."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def caseless(name: str) -> str:
    """Return a name in which composition and case do not matter."""
    return composed(composed(name).casefold())


@dataclass(frozen=True)
class FoundFiles:
    """The files of written paths. A path without a file has the files near it in case or Unicode form."""

    files: Mapping[Path, Path]
    near: Mapping[Path, tuple[Path, ...]] = field(default_factory=dict)

    def otherwise_written(self) -> list[str]:
        """Return a line for each path whose spelling differs from its file's, with the difference."""
        lines = []
        for path, file in self.files.items():
            if path != file:
                common = os.path.commonpath([path, file])
                one, other = (os.path.relpath(each, common) for each in (path, file))
                lines.append(f"{one!a} is written for the file {other!a}")
        return lines

    def without_file(self, path: Path) -> str:
        """Return a line about a path without a file, with the files that may be meant."""
        hint = ", ".join(ascii(str(file)) for file in self.near.get(path, ()))
        return f"{path} (only in another case or Unicode form: {hint})" if hint else str(path)


def find_files(paths: Iterable[Path], listed: Iterable[Path] = ()) -> FoundFiles:
    r"""Find the files of paths. Folders are listed once, since a stat of each file can take minutes.

    A file with exactly this name counts. Otherwise the name is compared in Unicode's form NFC, with ``/`` for ``\``.
    Otherwise a name that differs only in case counts if exactly one file has it, and no other path means that file.
    """
    written = list(dict.fromkeys(paths))
    wanted = list(dict.fromkeys([*written, *listed]))
    exact = {path for folder in {path.parent for path in wanted} for path in _files_in(folder)}
    files = {path: path for path in wanted if path in exact}
    if len(files) == len(wanted):
        return FoundFiles(files)
    find = _Search()
    loose: defaultdict[Path, list[Path]] = defaultdict(list)
    near: dict[Path, tuple[Path, ...]] = {}
    for path in wanted:
        if path in exact:
            continue
        same = find(path, composed)
        if len(same) == 1:
            files[path] = same[0]
        elif alike := find(path, caseless):
            near[path] = tuple(alike[:_NEAR])
            for file in near[path]:
                loose[file].append(path)
    named = {files[path] for path in written if path in files}
    for file, asking in loose.items():
        if len(asking) == 1 and near[asking[0]] == (file,) and file not in named:
            files[asking[0]] = file
            del near[asking[0]]
    return FoundFiles(files, near)


def paths_below(folder: Path, paths: Iterable[Path]) -> dict[Path, Path]:
    """Return paths by which a table means files of its folder, as a listing has them: no ``..``, no linked folder.

    Whole paths lose what is before the folder. Paths that lead outside stay.
    """
    resolve = lru_cache(maxsize=None)(real_place)
    base, places = Path(resolve(folder)), {path: Path(resolve(path.parent), path.name) for path in paths}
    return {
        path: folder / place.relative_to(base) if place.is_relative_to(base) else path for path, place in places.items()
    }


def real_place(path: Path) -> str:
    """Return a path without links, or the path itself where no file can have its name or where links lead nowhere."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return str(path)


def _files_in(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return ()


class _Search:
    """Finds paths part by part, below their last existing folder. The names in a folder are read once."""

    def __init__(self) -> None:
        self._is_folder = lru_cache(maxsize=None)(os.path.isdir)  # a name may be too long to ask
        self._names = lru_cache(maxsize=None)(_names_by_form)

    def __call__(self, path: Path, form: Callable[[str], str]) -> list[Path]:
        """Return the files whose parts agree in a form with the parts of a path."""
        if (base := next((each for each in path.parents if self._is_folder(each)), None)) is None:
            return []
        below = str(path.relative_to(base)).replace("\\", "/")
        places = [base]
        for part in below.split("/"):
            if part not in ("", "."):
                places = [file for folder in places for file in self._names(folder, form).get(form(part), ())]
        return [file for file in places if file != base]


def _names_by_form(folder: Path, form: Callable[[str], str]) -> dict[str, list[Path]]:
    names: defaultdict[str, list[Path]] = defaultdict(list)
    for file in _files_in(folder):
        names[form(file.name)].append(file)
    return names
