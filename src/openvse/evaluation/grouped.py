"""Intervals of means over queries that are about the same images and therefore are not independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from openvse.evaluation.metrics import percentile_intervals, resampled_sums


def grouped_intervals(
    columns: Float[np.ndarray, "Q M"],
    names: Sequence[str],
    groups: Int[np.ndarray, "Q"],
    *,
    resamples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of the means of columns; groups are drawn with replacement, with their queries.

    Args:
        columns: what counts for each query, such as 1 where it is found among the first.
        names: the name of each column.
        groups: the group of each query: the image that it is, or belongs to.
        resamples: the number of resamples; 0 returns nothing.
        seed: the seed of the draws.

    Returns:
        The lower and upper bound by name, times 100.
    """
    if not resamples:
        return {}
    _, unit = np.unique(groups, return_inverse=True)
    counted = np.column_stack([columns, np.ones(len(columns))])
    totals = np.column_stack([np.bincount(unit, column) for column in counted.T])
    sums = resampled_sums(totals, resamples, np.random.default_rng(seed))
    means = 100.0 * sums[:, :-1] / sums[:, -1:]
    return percentile_intervals([dict(zip(names, means.T, strict=True))])
