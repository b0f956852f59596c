"""Indexes of formats 1 and 2, as earlier versions wrote them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from zlib import crc32

import numpy as np

from openvse.search import Index, Item
from openvse.search.manifest import MANIFEST


def write_old(
    folder: Path,
    items: Sequence[Item],
    vectors: np.ndarray,
    *,
    version: int = 2,
    model: str = "m1",
    root: str = "/photos",
    name: str = MANIFEST,
    place: dict[str, str] | None = None,
) -> Path:
    """Write an index of format 1 or 2 and return its folder; ``name`` is that of its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    token = name[:4]
    lines = "".join(json.dumps(asdict(item)) + "\n" for item in items).encode()
    np.save(folder / f"vectors-{token}.npy", vectors)
    (folder / f"items-{token}.jsonl").write_bytes(lines)
    count, num_embeddings, dim = vectors.shape
    fields = {
        "format": "openvse-index",
        "version": version,
        "model": model,
        "root": root,
        "count": count,
        "num_embeddings": num_embeddings,
        "dim": dim,
        "dtype": str(vectors.dtype),
        "created": "2026-01-01T00:00:00+00:00",
        "vectors": f"vectors-{token}.npy",
        "items": f"items-{token}.jsonl",
    }
    if version == 2:
        sums = {"vectors": crc32(np.ascontiguousarray(vectors).data), "items": crc32(lines)}
        fields |= {"checksums": sums, "model_place": place}
    (folder / name).write_text(json.dumps(fields))
    return folder


def as_old(path: Path, version: int) -> Path:
    """Make an index of today one of an earlier format, with the same content, and return it."""
    index = Index.open(path)
    items, vectors, manifest = index.items, np.array(index.vectors), index.manifest
    for file in [*path.glob("items-*"), *path.glob("vectors-*"), path / MANIFEST]:
        file.unlink()
    place = manifest.model_place
    return write_old(
        path, items, vectors, version=version, model=manifest.model, root=manifest.root, place=place
    )


def without_checksums(path: Path) -> Path:
    """Make an index one of format 1, which has no checksums, and return it."""
    return as_old(path, 1)
