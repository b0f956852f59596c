"""The records of a run, whole, half-written and missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openvse.errors import OpenVSEError
from openvse.training.records import read_records

TRAIN = [
    {"kind": "train", "epoch": 1, "global_step": 10, "loss": 3.0, "images_per_s": 100.0},
    {"kind": "train", "epoch": 1, "global_step": 30, "loss": 2.0, "images_per_s": 50.0},
]
CURVES = [
    {"kind": "curves", "epoch": epoch, "global_step": 10 * epoch, "image.coefficients_2": [0.6, 0.4 * epoch]}
    for epoch in (1, 2)
]


def write(path: Path, records: list[dict[str, object]], end: str = "") -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records) + end)
    return path


def test_numbers_over_steps_and_what_a_killed_run_was_writing(tmp_path: Path) -> None:
    not_finite = {"kind": "train", "epoch": 2, "global_step": 40, "loss": float("nan")}
    found = read_records(
        write(tmp_path / "metrics.jsonl", [*TRAIN, not_finite], '[1, 2]\n{"kind": "train", "epo')
    )
    assert found.unreadable == 2
    assert found.names("train") == ["loss", "images_per_s"]
    series = found.series("train", "loss")
    assert (series.steps, series.epochs, series.values) == ((10, 30), (1, 1), (3.0, 2.0))
    assert found.series("train", "nothing").values == ()


def test_the_curves_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    found = read_records(write(tmp_path / "metrics.jsonl", CURVES))
    assert found.curves(1) == {"image.coefficients_2": [0.6, 0.4]}
    assert found.curves(7) == found.curves(None) == {"image.coefficients_2": [0.6, 0.8]}


def test_the_time_is_that_of_the_last_epoch(tmp_path: Path) -> None:
    assert read_records(write(tmp_path / "old.jsonl", TRAIN)).seconds() is None
    times = [{"kind": "time", "epoch": e, "global_step": 10 * e, "seconds": 5.0 * e} for e in (1, 2)]
    new = read_records(write(tmp_path / "new.jsonl", [*TRAIN, *times]))
    assert new.seconds() == 10.0 and new.memory() is None


def test_peak_memory_is_that_of_all_sessions(tmp_path: Path) -> None:
    # A run that is resumed begins again with a small process.
    times = [
        {"kind": "time", "epoch": e, "global_step": e, "seconds": e, "memory_bytes": m}
        for e, m in ((1, 9e8), (2, 7e8))
    ]
    assert read_records(write(tmp_path / "metrics.jsonl", times)).memory() == 9e8


def test_a_run_without_records_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(OpenVSEError, match="metrics.jsonl"):
        read_records(tmp_path / "metrics.jsonl")
    with pytest.raises(OpenVSEError, match="record"):
        read_records(write(tmp_path / "metrics.jsonl", [], '{"kind": "tr'))
