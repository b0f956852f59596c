"""What a run records about the machine, its cost and its precision."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from openvse.tasks.run import run_recipe
from openvse.training.environment import peak_memory
from openvse.training.records import METRICS, read_records
from tests.tiny import Recorder, tiny_recipe, write_tiny_corpus

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
    run_recipe(tiny_recipe(write_tiny_corpus(tmp_path), phases=[{"epochs": 2}]), tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert len(records.of("time")) == 2
    assert records.memory() == records.of("time")[-1]["memory_bytes"] >= 10**7


pytestmark = pytest.mark.medium


@pytest.mark.parametrize(
    ("wanted", "has_bf16", "taken"), [("auto", True, "bf16"), ("auto", False, "fp32"), ("bf16", False, "bf16")]
)
def test_auto_is_what_the_processor_computes_and_bf16_is_told_where_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, has_bf16: bool, taken: str
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True, "avx512_bf16": has_bf16})
    watcher, corpus = Recorder(), write_tiny_corpus(tmp_path / "corpus")
    run_recipe(tiny_recipe(corpus, precision=wanted, device="cpu"), tmp_path / "run", watcher=watcher)
    assert any("training.precision=auto" in each for each in watcher.warnings) == (wanted != "auto")
    assert wanted != "auto" or f"precision: {taken}" in watcher.notes
    assert read_records(tmp_path / "run" / METRICS).of("environment")[0]["precision"] == taken
