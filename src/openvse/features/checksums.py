"""Checksums of a feature store, which show whether bytes on the disk have changed.

    checksums.json   the size of the part of the store's files that it covers, and the CRC-32 of that part of each file,
                     without headers

The file is written after the manifest of a commit, so after a kill it can lack the last commit. It also lacks items
that an older openvse added. A store that was begun by an older openvse does not have this file, and never gets it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from openvse.features.layout import HEADER_BYTES, IDS, Manifest, damaged
from openvse.files import checksum, write_whole

CHECKSUMS = "checksums.json"

SMALL_BYTES = 1 << 24
"""Files up to this size are always compared with their checksum when a store is opened, larger ones on request."""


def add_checksums(folder: Path, before: Manifest, after: Manifest) -> None:
    """Add the checksums of a commit; its data are read again, which the system still has in memory.

    Args:
        folder: the folder of the store.
        before: the manifest before the commit.
        after: the manifest after the commit.

    Raises:
        OSError: the disk is full or cannot be written to.
    """
    covered = _read(folder, after)
    if covered is None:
        if before.items:
            return
        covered = replace(after, items=0, rows=0, id_bytes=0), {}
    known, sums = covered
    added = {
        name: checksum(folder / name, skip=end, size=after.file_bytes[name] - end, start=sums.get(name, 0))
        for name, end in known.file_bytes.items()
    }
    counts = {"items": after.items, "rows": after.rows, "id_bytes": after.id_bytes}
    write_whole(folder / CHECKSUMS, json.dumps({**counts, "sums": added}, indent=2) + "\n")


def check_files(folder: Path, manifest: Manifest, *, all_files: bool) -> None:
    """Compare the files of a store with their checksums, for those parts that have one.

    Args:
        folder: the folder of the store.
        manifest: the manifest of the store.
        all_files: whether to compare large files too.

    Raises:
        StoreError: a file has changed.
    """
    covered = _read(folder, manifest)
    if covered is None:
        return
    known, sums = covered
    for name, end in known.file_bytes.items():
        header = _header_bytes(name)
        if (all_files or end <= SMALL_BYTES) and name in sums:
            found = checksum(folder / name, skip=header, size=end - header)
            if found != sums[name]:
                raise damaged(folder, f"{name} does not match its checksum")


def _read(folder: Path, manifest: Manifest) -> tuple[Manifest, dict[str, int]] | None:
    """Return the covered part of the store as a manifest, and the checksums; None if there are none."""
    try:
        content = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        counts = {name: int(content[name]) for name in ("items", "rows", "id_bytes")}
        sums = {str(name): int(value) for name, value in content["sums"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if any(not 0 <= count <= getattr(manifest, name) for name, count in counts.items()):
        return None  # the file is of an earlier store in this folder
    items, rows, id_bytes = counts.values()
    return replace(manifest, items=items, rows=rows, id_bytes=id_bytes), sums


def _header_bytes(name: str) -> int:
    return 0 if name == IDS else HEADER_BYTES
