"""Finished sweeps side by side: what their tables say, and figures over a key or over the sweeps."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from openvse.analysis.sweeps import analyze_sweeps, open_sweeps
from openvse.errors import OpenVSEError
from openvse.evaluation.metrics import RECALLS
from tests.analysis.small import is_png


def write_sweep(folder: Path, rsum: Callable[..., float], **axes: tuple[object, ...]) -> str:
    folder.mkdir()
    with (folder / "sweep.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*axes, *RECALLS, "rsum", "seeds"])
        for values in product(*axes.values()):
            table.writerow([*values, *[rsum(*values) / 6] * 6, rsum(*values), 1])
    return str(folder)


@pytest.mark.medium
def test_a_metric_over_a_key_is_the_mean_of_all_settings_with_its_value(tmp_path: Path) -> None:
    one = write_sweep(tmp_path / "one", lambda k, w: 100 + k + 10 * w, K=(1, 2, 4), w=(0, 0.01, 1))
    two = write_sweep(tmp_path / "two", lambda K, w: 200 + K * len(w), K=(1, 2, 4), w=("a", "bb"))
    found = analyze_sweeps(open_sweeps([f"first={one}", two]), ["K"], ["rsum", "i2t_r1"])
    rows = {(row[0], row[2]): row[4:] for row in found.summary.rows if row[3] == "rsum"}
    values = [100 + 2 + 10 * w for w in (0, 0.01, 1)]
    assert rows["first", "2"] == (
        pytest.approx(statistics.mean(values)),
        pytest.approx(statistics.stdev(values)),
        3,
    )
    assert len(rows) == 6 and ("two", "4") in rows
    names = {path.name for path in found.write(tmp_path / "out")}
    assert names == {"sweeps.csv", "sweeps.png", "sweeps.svg", "sweeps_i2t_r1.png", "sweeps_i2t_r1.svg"}
    assert is_png(tmp_path / "out" / "sweeps.png")


@pytest.mark.medium
def test_without_a_key_each_sweep_is_a_point(tmp_path: Path) -> None:
    sweeps = [write_sweep(tmp_path / name, lambda k: k, K=(1, 3)) for name in ("a", "b")]
    found = analyze_sweeps(open_sweeps(sweeps), [], ["rsum"])
    assert [(row[0], row[4], row[6]) for row in found.summary.rows] == [("a", 2, 2), ("b", 2, 2)]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "a", lambda k: k, K=(1, 3))
    with pytest.raises(OpenVSEError, match="'KK'.*'K'"):
        analyze_sweeps(open_sweeps([sweep]), ["KK"], ["rsum"])
    with pytest.raises(OpenVSEError, match="view_cosine"):
        analyze_sweeps(open_sweeps([sweep]), ["K"], ["view_cosine"])
    with pytest.raises(OpenVSEError, match="'a'"):
        open_sweeps([sweep, f"a={sweep}"])
    (tmp_path / "a" / "sweep.csv").write_text("x,y\n1,2\n")
    for place in (tmp_path, tmp_path / "a"):
        with pytest.raises(OpenVSEError, match="sweep.csv"):
            open_sweeps([str(place)])
