"""Images outside the folder of their data set, by ``../``, an absolute path, or a link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openvse.errors import DataError
from openvse.media.names import escaped
from openvse.media.packed import ImageFile

OWN_DATA = frozenset({"csv", "folder", "hf", "parquet", "question_folder", "sidecars", "table", "webdataset"})
"""The data sets whose files may name any image path. The layouts of published data sets are known."""


def refuse_outside(root: Path, images: Sequence[tuple[str, ImageFile]]) -> None:
    """Refuse images outside the folder of a data set.

    The metadata decide which files are read and turned into features and pages. So a data set from elsewhere could read
    any file of this machine.

    Args:
        root: the folder of the data set, or its file.
        images: the identifier and place of each image.

    Raises:
        DataError: an image is outside; the message names it, and the option that allows it.
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
                f"{escaped(folder)}: image {escaped(name)!r} is outside the folder, at {escaped(place)}; move it "
                "inside, or allow it with --allow-outside (for train data.allow_outside=true)"
            )


def _base(folder: Path) -> Path:
    """Return the folder in which images may be: the hub's cache keeps the files of snapshots next to the snapshots."""
    cache = folder.parent.parent
    return cache if folder.parent.name == "snapshots" and (cache / "blobs").is_dir() else folder
