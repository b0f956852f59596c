"""Which folders an index holds, and which it may hold without being asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import DataError, IndexFormatError, IndexVersionError
from openvse.index.database import Database, Root
from openvse.index.manifest import MANIFEST, UNFINISHED, Held, Manifest, VectorDtype, read_manifest
from openvse.media.segments import file_of

_LOOKED_AT = 1000


@dataclass(frozen=True)
class Plan:
    """What an indexing is to do with the index that is there.

    Attributes:
        roots: all roots that the index is to hold.
        replace: whether the index that is there is one of something else.
    """

    roots: tuple[Root, ...]
    replace: bool


@dataclass(frozen=True)
class _Found:
    """An index, or an unfinished one, and its roots."""

    manifest: Manifest
    roots: tuple[Root, ...]


def plan(
    target: Path,
    folders: Sequence[Path],
    *,
    model: str,
    dtype: VectorDtype | None,
    holds: Held,
    overwrite: bool,
    add: bool,
) -> Plan:
    """Compare what is to be indexed with the index that is there.

    A damaged index may be replaced, and so may a folder that has moved: the old one is gone, and an image that the
    index holds is in the new one, unchanged.

    Raises:
        IndexFormatError: an index of another model, of other folders or of something else would be replaced unasked.
        DataError: a folder is named twice, or one is inside another.
    """
    _check_apart(folders)
    found = _look(target, MANIFEST, overwrite)
    unfinished = _look(target, UNFINISHED, overwrite)
    fresh = _numbered((), folders)
    for each in (found, unfinished):
        if each is None or (each is unfinished and overwrite):
            continue
        what = _difference(each.manifest, model, holds)
        merged = None if what else _merged(target, each, folders, add)
        if merged is None and not overwrite:
            names = ", ".join(root.path for root in each.roots)
            given = ", ".join(map(str, folders))
            reason = what or f"holds the images of {names}, not of {given}"
            more = "" if what else "add the folder with --add, "
            raise IndexFormatError(
                f"index {target} {reason}: {more}choose another --out, or replace it with --overwrite"
            )
        if merged is None:
            return Plan(fresh, replace=(target / MANIFEST).is_file())
    if found is None:
        return Plan(fresh, replace=(target / MANIFEST).is_file() and _is_of_later(target))
    if dtype not in (None, found.manifest.dtype):
        return Plan(fresh, replace=True)
    return Plan(_merged(target, found, folders, add) or fresh, replace=False)


def _difference(manifest: Manifest, model: str, holds: Held) -> str:
    if manifest.model != model:
        return f"was made by model {manifest.model}, not by {model}"
    return "" if manifest.holds == holds else f"holds {manifest.holds}, not {holds}"


def _is_of_later(target: Path) -> bool:
    try:
        read_manifest(target)
    except IndexVersionError:
        return True
    except IndexFormatError:
        return False
    return False


def _look(target: Path, name: str, overwrite: bool) -> _Found | None:
    """Return the index under a name; None where there is none, or a damaged one."""
    try:
        manifest = read_manifest(target, name)
        if not (target / manifest.items).is_file():
            return None
        with Database(target / manifest.items) as database:
            return _Found(manifest, database.roots())
    except IndexVersionError:
        if overwrite:
            return None
        raise
    except IndexFormatError:
        return None


def _merged(target: Path, found: _Found, folders: Sequence[Path], add: bool) -> tuple[Root, ...] | None:
    """Return the roots of an index once folders are indexed; None where they are others."""
    known = {root.path: root for root in found.roots}
    strange = [folder for folder in folders if str(folder) not in known]
    if not strange:
        return found.roots
    if add:
        _check_apart([*map(Path, known), *strange])
        return _numbered(found.roots, strange)
    named = set(map(str, folders))
    gone = [root for root in found.roots if root.path not in named and not Path(root.path).exists()]
    if len(strange) == len(gone) == 1 and _holds_same(target, found, gone[0], strange[0]):
        moved = Root(gone[0].number, str(strange[0]), gone[0].label)
        return tuple(moved if root == gone[0] else root for root in found.roots)
    return None


def _numbered(known: Sequence[Root], folders: Sequence[Path]) -> tuple[Root, ...]:
    """Give new roots numbers, and labels that tell their items apart."""
    roots = list(known)
    for folder in folders:
        number = max((root.number for root in roots), default=-1) + 1
        if not number:
            roots.append(Root(0, str(folder), ""))
            continue
        taken = {root.label for root in roots}
        names = (
            folder.name or "root",
            *(f"{folder.name or 'root'}-{count}" for count in range(2, len(roots) + 3)),
        )
        roots.append(Root(number, str(folder), next(name for name in names if name not in taken)))
    return tuple(roots)


def _check_apart(folders: Sequence[Path]) -> None:
    """Raise DataError where a folder is named twice or is inside another: its images would be found twice."""
    for place, first in enumerate(folders):
        for second in folders[place + 1 :]:
            if first == second or first in second.parents or second in first.parents:
                raise DataError(
                    f"{first} and {second} hold the same images: index the outer folder alone, or folders beside each "
                    f"other"
                )


def _holds_same(target: Path, found: _Found, gone: Root, folder: Path) -> bool:
    """Return whether an image of a root that is gone is in a folder, unchanged."""
    try:
        with Database(target / found.manifest.items) as database:
            for number, (item_id, modified_ns, size, _) in enumerate(database.walk(gone.number)):
                if _is_there(folder, file_of(gone.name_of(item_id)), modified_ns, size):
                    return True
                if number == _LOOKED_AT:
                    break
    except IndexFormatError:
        pass
    return False


def _is_there(folder: Path, name: str, modified_ns: int, size: int) -> bool:
    try:
        status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - an odd name is no reason to stop
    except (OSError, ValueError):
        return False
    return (status.st_mtime_ns, status.st_size) == (modified_ns, size)
