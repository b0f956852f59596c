"""Windows of an image: the places of the grids of the backbone ``crops``."""

from __future__ import annotations

from collections.abc import Iterator


def window_boxes(windows: tuple[tuple[int, float], ...]) -> Iterator[tuple[float, float, float, float]]:
    """Yield left, top, right and bottom of the windows as fractions of the image, row by row of each grid."""
    for count, share in windows:
        starts = [(1 - share) * place for place in _places(count)]
        for top in starts:
            for left in starts:
                yield left, top, min(1.0, left + share), min(1.0, top + share)


def pixel_windows(
    windows: tuple[tuple[int, float], ...], width: int, height: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the windows in whole pixels. Windows of one grid have the same size, at least one pixel wide and high."""
    for count, share in windows:
        wide, high = max(1, round(share * width)), max(1, round(share * height))
        for row in _places(count):
            top = round(row * (height - high))
            for column in _places(count):
                left = round(column * (width - wide))
                yield left, top, left + wide, top + high


def _places(count: int) -> list[float]:
    """Return the starts of the windows of a grid, from 0 (the edge) to 1 (the last place). A single one is at 1/2."""
    return [0.5] if count == 1 else [place / (count - 1) for place in range(count)]
