"""How much a validation split of some size can tell."""

from __future__ import annotations

import math

ENOUGH = 100
"""Items from which on no warning is given: an interval of at most 10 points to either side."""

_TWO_SIDED_95 = 1.96


def widest_interval(count: int) -> float:
    """Return half the width of the 95 % interval of a share of ``count`` items, in points of percent, at its widest.

    That is the normal approximation ``1.96 * sqrt(p (1 - p) / count)`` at p = 1/2.

    Example:
        >>> round(widest_interval(100), 1)
        9.8
    """
    return 100 * _TWO_SIDED_95 * math.sqrt(0.25 / count)


def small_split_warning(count: int, items: str, figure: str) -> str:
    """Say how little a small validation split can tell; nothing where it is large enough.

    Args:
        count: items of the split.
        items: what they are, such as "images".
        figure: what is measured on them, such as "a recall".
    """
    if count >= ENOUGH:
        return ""
    return (
        f"validation has only {count} {items}: the 95 % interval of {figure} reaches up to "
        f"{widest_interval(count):.0f} points to either side, so smaller differences between epochs or models "
        f"tell nothing; keep at least {ENOUGH} {items} for validation where you can"
    )
