"""The table of bottom-up attention: a line per image, with its boxes and region features as base64."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from openvse.errors import BadFeaturesError, DataError
from openvse.features.entries import COUNT, FeatureEntry, Local, entry_number, local_of

COLUMNS = {
    6: "image_id image_w image_h num_boxes boxes features",
    10: "image_id image_h image_w objects_id objects_conf attrs_id attrs_conf num_boxes boxes features",
}
"""Columns by their count: those of bottom-up attention (Anderson et al., CVPR 2018), and those of LXMERT."""

LONGEST_LINE = 1 << 28
"""The longest line in bytes; 100 regions of 2,048 numbers take 1.1 MB."""


def read_tsv(source: Path, ids: Path | None = None) -> Iterator[FeatureEntry]:
    """Read a ``.tsv`` file, or those of a folder one after the other, line by line.

    Numbers are little-endian float32. The first line may hold the names of the columns.
    """
    if ids is not None:
        raise DataError(f"{source} names its items itself: leave --ids out")
    for path in sorted(source.rglob("*.tsv*")) if source.is_dir() else [source]:
        yield from _read_table(path)


def _read_table(path: Path) -> Iterator[FeatureEntry]:
    names: list[str] = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number} is longer than {LONGEST_LINE} bytes: this is not a table"
                )
            cells = line.rstrip(b"\r\n").split(b"\t")
            if not names:
                names = _columns(path, cells)
                if cells[0] in (b"image_id", b"img_id"):
                    continue
            if line.strip():
                item = cells[names.index("image_id")] if len(cells) == len(names) else cells[0]
                yield FeatureEntry(
                    item.decode(errors="surrogateescape").strip(),
                    f"{path.name}, line {number}",
                    partial(_parse, names, cells),
                )


def _columns(path: Path, cells: list[bytes]) -> list[str]:
    """Return the names of the columns, from a header or from their number."""
    if cells[0] in (b"image_id", b"img_id"):
        names = [cell.decode(errors="replace").strip().replace("img_", "image_") for cell in cells]
    else:
        names = COLUMNS.get(len(cells), "").split()
    if not {"image_id", "num_boxes", "features"} <= set(names):
        raise DataError(
            f"{path} is not a table of features: its first line has {len(cells)} columns, expected are "
            + " or ".join(f"{count} ({text})" for count, text in COLUMNS.items())
        )
    return names


def _parse(names: list[str], cells: list[bytes]) -> Local:
    if len(cells) != len(names):
        raise BadFeaturesError(f"it has {len(cells)} of {len(names)} columns: the line is cut off or damaged")
    row = dict(zip(names, cells, strict=True))
    count = int(entry_number(row, COUNT) or 0)
    if count < 1:
        raise BadFeaturesError("it has no boxes and so no features")
    return local_of(
        row | {name: _floats(row[name], name, count) for name in ("features", "boxes") if name in row}
    )


def _floats(text: bytes, what: str, count: int) -> Float[np.ndarray, "count _"]:
    # A writer that turned bytes into text in Python 3 left b'...' around them.
    text = text[2:-1] if text[:2] == b"b'" else text
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise BadFeaturesError(f"its {what} are not base64 ({error}): cut off or damaged") from error
    if not content or len(content) % (4 * count):
        raise BadFeaturesError(
            f"its {what} have {len(content)} bytes, which do not divide into {count} rows of float32"
        )
    return np.frombuffer(content, "<f4").reshape(count, -1)
