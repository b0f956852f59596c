"""What a run writes down."""

from __future__ import annotations

import json
import signal
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openvse.errors import TrainingError
from openvse.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from openvse.training.records import MetricsLog


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
    progress = Progress(
        epoch=2, step=5, global_step=25, best_score=123.4, best_epoch=1, loss_sum=0.5, seconds=9.0
    )
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
    with pytest.raises(TrainingError):
        load_checkpoint(tmp_path / "last.pt")


def test_no_code_is_unpickled(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, ("raise SystemExit",))

    torch.save({"format_version": 1, "progress": {}, "model": Payload()}, tmp_path / "last.pt")
    with pytest.raises(TrainingError):
        load_checkpoint(tmp_path / "last.pt")


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
