"""Images that leave the folder of their data set: by ``../``, an absolute path, or a link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openvse.errors import DataError
from openvse.media.names import escaped
from openvse.media.packed import ImageFile

OWN_DATA = frozenset({"csv", "folder", "hf", "parquet", "question_folder", "sidecars", "table", "webdataset"})
"""The data sets whose files say freely where images lie. The layouts of published ones are known."""


def refuse_outside(root: Path, images: Sequence[tuple[str, ImageFile]]) -> None:
    """Refuse images that lie outside of a data set's folder.

    Whoever wrote the metadata chooses which files are read, and features and pages are made of them. So a data set from
    somewhere else could read any file of this machine.

    Args:
        root: the folder of the data set, or its file.
        images: the identifier and place of each image.

    Raises:
        DataError: one lies outside; it is named, with the option that allows it.
    """
    folder = root.parent if root.is_file() else root
    base = _base(folder.resolve())
    real: dict[Path, Path] = {}  # links of folders are resolved once for all their images
    for name, image in images:
        if not isinstance(image, Path):
            continue
        parent = real.get(image.parent) or real.setdefault(image.parent, image.parent.resolve())
        place = image.resolve() if image.is_symlink() else parent / image.name
        if not place.is_relative_to(base):
            raise DataError(
                f"{escaped(folder)}: image {escaped(name)!r} lies outside of the folder, at {escaped(place)}; move it "
                "inside, or allow it with --allow-outside (for train data.allow_outside=true)"
            )


def _base(folder: Path) -> Path:
    """Return the folder in which images may lie: the hub's cache keeps the files of its snapshots beside them."""
    cache = folder.parent.parent
    return cache if folder.parent.name == "snapshots" and (cache / "blobs").is_dir() else folder
