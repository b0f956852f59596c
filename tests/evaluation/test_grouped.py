"""Intervals of means over queries that share images."""

from __future__ import annotations

import numpy as np
import pytest

from openvse.evaluation.metrics import grouped_intervals


@pytest.mark.medium
def test_intervals_are_those_of_drawing_whole_groups() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), generator.integers(1, 6, 30))
    columns = (generator.random((len(groups), 2)) < 0.4).astype(np.float64)
    found = grouped_intervals(columns, ["a", "b"], groups + 7, resamples=4000, seed=1)
    drawn = []
    for _ in range(4000):  # group by group, with all its queries
        rows = np.concatenate([np.flatnonzero(groups == n) for n in generator.integers(30, size=30)])
        drawn.append(100 * columns[rows].mean(axis=0))
    for number, name in enumerate("ab"):
        assert found[name] == pytest.approx(np.percentile(np.array(drawn)[:, number], [2.5, 97.5]), abs=1.5)


def test_queries_of_one_image_are_one_piece_of_evidence() -> None:
    columns = np.repeat([[0.0], [1.0]], 50, axis=0).repeat(2, axis=0)
    alone = grouped_intervals(columns, ["a"], np.arange(200), resamples=500, seed=0)["a"]
    together = grouped_intervals(columns, ["a"], np.arange(200) // 20, resamples=500, seed=0)["a"]
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])
    assert grouped_intervals(columns, ["a"], np.arange(200), resamples=0, seed=0) == {}
