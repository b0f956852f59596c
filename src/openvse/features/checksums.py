"""Checksums of a feature store: a byte that changed on the disk is noticed.

    checksums.json   how much of the store's files it covers, and the CRC-32 of that part of each, without headers

It is written after the manifest of a commit, so after a kill it may cover one commit less than there is; an openvse
that does not know it adds items that it does not cover. A store from before it has none, and never gets one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from openvse.features.layout import HEADER_BYTES, IDS, Manifest, damaged
from openvse.files import checksum, write_whole

CHECKSUMS = "checksums.json"

SMALL_BYTES = 1 << 24
"""Files up to this size are compared with their checksum whenever a store is opened; larger ones on request."""


def add_checksums(folder: Path, before: Manifest, after: Manifest) -> None:
    """Cover what a commit added: it is read again, from the system's memory of what was just written.

    Args:
        folder: of the store.
        before: what was committed before.
        after: what is committed now.

    Raises:
        OSError: the disk refuses.
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
    """Compare the files of a store with their checksums, as far as there are some.

    Args:
        folder: of the store.
        manifest: of the store.
        all_files: also those that are large.

    Raises:
        StoreError: a file is not what was written.
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
    """Return the part of the store that is covered, as its manifest, and the checksums; None where there are none."""
    try:
        content = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        counts = {name: int(content[name]) for name in ("items", "rows", "id_bytes")}
        sums = {str(name): int(value) for name, value in content["sums"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if any(not 0 <= count <= getattr(manifest, name) for name, count in counts.items()):
        return None  # of a store that was here before
    items, rows, id_bytes = counts.values()
    return replace(manifest, items=items, rows=rows, id_bytes=id_bytes), sums


def _header_bytes(name: str) -> int:
    return 0 if name == IDS else HEADER_BYTES
