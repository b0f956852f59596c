"""What a run records about the machine and its cost."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.tasks.run import train
from openvse.training.environment import peak_memory
from openvse.training.records import read_records
from tests.tiny import tiny_recipe, write_tiny_corpus

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say")
def test_the_peak_stays_after_the_memory_is_free() -> None:
    size = 128 * 2**20
    taken = np.ones(size, dtype=np.uint8)
    peak = peak_memory(CPU)
    assert peak is not None and peak >= taken.nbytes
    del taken
    assert (peak_memory(CPU) or 0) >= peak


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say")
def test_a_run_records_the_memory_of_each_epoch(tmp_path: Path) -> None:
    train(tiny_recipe(write_tiny_corpus(tmp_path), phases=[{"epochs": 2}]), tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert len(records.of("time")) == 2
    assert records.memory() == records.of("time")[-1]["memory_bytes"] >= 10**7
