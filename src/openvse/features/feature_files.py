"""The kinds of feature files that can be imported. A new kind takes a function and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

from openvse.errors import DataError
from openvse.features.entries import Entry
from openvse.features.hdf5 import read_hdf5
from openvse.features.layout import MANIFEST
from openvse.features.npy import read_npy
from openvse.features.npz import read_npz
from openvse.features.tsv import read_tsv
from openvse.registry import Registry

FEATURE_FILES: Registry[Iterator[Entry]] = Registry(
    "kind of feature files", {"hdf5": read_hdf5, "npy": read_npy, "npz": read_npz, "tsv": read_tsv}
)
"""Readers by name: ``(source: Path, ids: Path | None) -> Iterator[Entry]``."""

_SUFFIXES = MappingProxyType(
    {".tsv": "tsv", ".npz": "npz", ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5"}
)


def reader_of(source: Path, kind: str | None) -> Callable[..., Iterator[Entry]]:
    """Return the reader of a file or folder of features.

    Args:
        source: the file or folder.
        kind: a name in ``FEATURE_FILES``; None infers it from the names of files.

    Raises:
        DataError: the source is missing or already a feature store, or its kind cannot be inferred.
        RecipeError: the kind is unknown.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file or folder; check the path")
    if (source / MANIFEST).exists():
        raise DataError(f"{source} is already a feature store: use it directly")
    return FEATURE_FILES.get(kind or _detect(source))


def _detect(source: Path) -> str:
    paths = source.rglob("*") if source.is_dir() else [source]
    # Parts of a large table are named table.tsv.0, table.tsv.1.
    kinds = {_SUFFIXES.get(suffix) for path in paths for suffix in path.suffixes[-2:]} - {None}
    if len(kinds) == 1:
        return str(kinds.pop())
    listed = ", ".join(sorted(map(str, kinds)))
    content = f"files of several kinds ({listed})" if kinds else "no feature files"
    raise DataError(
        f"{source}: {content} there; expected are .tsv, .npz, .npy or .h5: give --kind {'|'.join(FEATURE_FILES)}"
    )
