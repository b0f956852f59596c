"""Figures, which need the extra ``analysis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def import_figure() -> type[Figure]:
    """Return matplotlib's figure class, which draws without a display.

    Raises:
        OpenVSEError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OpenVSEError("the plot needs matplotlib: pip install 'openvse[analysis]'") from error
    return Figure
