"""An index of format 1 or 2 becomes one of format 3: its embeddings stay where they are, and nothing is embedded."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openvse.errors import IndexFormatError
from openvse.media.names import is_video_name
from openvse.search.database import Database, Root, Stored
from openvse.search.manifest import MANIFEST, UNFINISHED, Item, Manifest, read_manifest
from openvse.search.old_formats import OldIndex, compare_old, finite_rows, open_old, open_old_unfinished
from openvse.search.segments import row_checksum


def upgrade(folder: Path, model: str) -> int:
    """Turn an index of a model into one of format 3, with what an interrupted indexing embedded.

    The manifest is replaced last, so that a process that is killed leaves the old index.

    Returns:
        The format that it was of; 0 where there is nothing to do, or where it is damaged and to be made anew.
    """
    whole, unfinished = _old(folder, MANIFEST, model), _old(folder, UNFINISHED, model)
    if whole is None and unfinished is None:
        return 0
    if whole and unfinished and whole.manifest.dtype != unfinished.manifest.dtype:
        unfinished = None
    newest = whole or unfinished
    assert newest is not None
    manifest = replace(newest.manifest, items=f"items-{secrets.token_hex(4)}.sqlite")
    known = set(whole.items) if whole else set[Item]()
    with Database(folder / manifest.items, write=True) as database, database.transaction():
        database.set_roots([Root(0, newest.manifest.root, "")])
        for run, old in enumerate((whole, unfinished), start=1):
            if old is None:
                continue
            segment = database.new_segment(old.manifest.vectors, len(old.items))
            database.put(_stored(old, segment, run, known if run == 2 else set()))
        database.set("run", "2" if unfinished else "1")
        database.set("unfinished", "2" if unfinished else "")
    manifest.write(folder)
    (folder / UNFINISHED).unlink(missing_ok=True)
    return 1 if newest.manifest.checksums is None else 2


def _old(folder: Path, name: str, model: str) -> OldIndex | None:
    """Open an index of an old format; None where there is none of the model, or a damaged one."""
    try:
        manifest = read_manifest(folder, name)
        if manifest.model != model or not manifest.vectors:
            return None
        return _checked(folder, manifest) if name == MANIFEST else open_old_unfinished(folder, manifest)
    except (IndexFormatError, OSError, ValueError, EOFError):
        return None


def _checked(folder: Path, manifest: Manifest) -> OldIndex:
    old = open_old(folder, manifest)
    compare_old(folder, manifest, old.vectors.nbytes)
    return old


def _stored(old: OldIndex, segment: int, run: int, known: set[Item]) -> Iterator[Stored]:
    """Yield the items with sound embeddings that are not known yet."""
    for row in finite_rows(old.vectors).tolist():
        item = old.items[row]
        if item not in known:
            kind = "clip" if is_video_name(item.id) else "image"
            checksum = row_checksum(item, old.vectors[row])
            yield Stored(item, 0, kind, None, segment, row, checksum, run)
