"""``training.precision: auto`` is what the device computes fast, and the run says and records it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openvse.tasks.run import train
from openvse.training.records import METRICS, read_records
from tests.tiny import Recorder, tiny_recipe, write_tiny_corpus

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_is_what_the_processor_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bf16: bool
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True, "avx512_bf16": has_bf16})
    watcher, corpus = Recorder(), write_tiny_corpus(tmp_path / "corpus")
    train(tiny_recipe(corpus, precision="auto", device="cpu"), tmp_path / "run", watcher=watcher)
    precision = "bf16" if has_bf16 else "fp32"
    assert f"precision: {precision}" in watcher.notes
    assert read_records(tmp_path / "run" / METRICS).of("environment")[0]["precision"] == precision


def test_bf16_on_a_processor_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True})
    watcher, corpus = Recorder(), write_tiny_corpus(tmp_path / "corpus")
    train(tiny_recipe(corpus, precision="bf16", device="cpu"), tmp_path / "run", watcher=watcher)
    assert any("set training.precision=auto or fp32" in warning for warning in watcher.warnings)
