"""What a run writes down, and its records: whole, half-written and missing."""

import json
import signal
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openvse.errors import OpenVSEError, TrainingError
from openvse.training.optimizer import Progress, load_checkpoint, save_checkpoint
from openvse.training.records import MetricsLog, read_records
from tests.naming import names, refusal


def test_a_resumed_log_drops_what_will_be_repeated(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, last_step=0)
    for step in range(1, 6):
        log.write("train", 1, step, {"loss": float(step)})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "global_st')  # killed within a line
    MetricsLog(tmp_path, last_step=3).close()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["global_step"] for record in records] == [1, 2, 3]
    assert records[0] == {"kind": "train", "epoch": 1, "global_step": 1, "loss": 1.0}


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    progress = Progress(epoch=2, step=5, global_step=25, best_score=123.4, best_epoch=1, loss_sum=0.5, seconds=9.0)
    save_checkpoint(tmp_path / "last.pt", progress, {"model": {"w": torch.arange(3)}})
    again, state = load_checkpoint(tmp_path / "last.pt")
    assert again == progress
    assert torch.equal(state["model"]["w"], torch.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.usefixtures("ctrl_c")
def test_a_stop_waits_until_the_checkpoint_is_complete(tmp_path: Path) -> None:
    class Stops:
        def __reduce__(self) -> tuple[object, tuple[()]]:
            signal.raise_signal(signal.SIGINT)
            return (OrderedDict, ())

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "last.pt", Progress(epoch=2), {"model": Stops()})
    assert load_checkpoint(tmp_path / "last.pt") == (Progress(epoch=2), {"model": {}})


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last.pt").write_bytes(content)
    refusal(TrainingError, load_checkpoint, tmp_path / "last.pt")


def test_no_code_is_unpickled(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, ("raise SystemExit",))

    torch.save({"format_version": 1, "progress": {}, "model": Payload()}, tmp_path / "last.pt")
    refusal(TrainingError, load_checkpoint, tmp_path / "last.pt")


def test_tensorboard_shows_the_last_attempt_of_each_step(tmp_path: Path) -> None:
    threads = threading.active_count()
    # The first attempt is stopped after its third step; its checkpoint is of the second.
    for last_step, loss in ((0, 1.0), (2, 7.0)):
        log = MetricsLog(tmp_path, last_step)
        for step in range(last_step + 1, 4):
            log.write("train", 1, step, {"loss": loss, "learning_rate": 0.5})
        assert threading.active_count() == threads  # one that waits would hold up the end of a stopped run
        log.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(each.step, each.value) for each in shown.Scalars("train/loss")] == [(1, 1.0), (2, 1.0), (3, 7.0)]
    assert shown.Tags()["scalars"] == ["train/loss", "train/learning_rate"]


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
    found = read_records(write(tmp_path / "metrics.jsonl", [*TRAIN, not_finite], '[1, 2]\n{"kind": "train", "epo'))
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
        {"kind": "time", "epoch": e, "global_step": e, "seconds": e, "memory_bytes": m} for e, m in ((1, 9e8), (2, 7e8))
    ]
    assert read_records(write(tmp_path / "metrics.jsonl", times)).memory() == 9e8


def test_a_run_without_records_gets_one_line(tmp_path: Path) -> None:
    assert names(refusal(OpenVSEError, read_records, tmp_path / "metrics.jsonl"), "metrics.jsonl")
    with pytest.raises(OpenVSEError, match="metrics.jsonl"):
        read_records(write(tmp_path / "metrics.jsonl", [], '{"kind": "tr'))
