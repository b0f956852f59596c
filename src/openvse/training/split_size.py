"""The precision of figures on a small validation split."""

from __future__ import annotations

import math

ENOUGH = 100
"""Number of items that is enough to give no warning: the interval is then at most 10 points to either side."""

_TWO_SIDED_95 = 1.96


def widest_interval(count: int) -> float:
    """Return half the width of the widest 95 % interval of a share of ``count`` items, in percentage points.

    It is the normal approximation ``1.96 * sqrt(p (1 - p) / count)`` at p = 1/2.

    Example:
        >>> round(widest_interval(100), 1)
        9.8
    """
    return 100 * _TWO_SIDED_95 * math.sqrt(0.25 / count)


def small_split_warning(count: int, items: str, figure: str) -> str:
    """Return a warning of wide intervals on a small validation split; "" if the split is large enough.

    Args:
        count: the number of items in the split.
        items: the name of the items, such as "images".
        figure: the name of the figure that is measured on them, such as "a recall".
    """
    if count >= ENOUGH:
        return ""
    return (
        f"validation has only {count} {items}: the 95 % interval of {figure} reaches up to "
        f"{widest_interval(count):.0f} points to either side, so smaller differences between epochs or models "
        f"mean nothing; keep at least {ENOUGH} {items} for validation where you can"
    )
