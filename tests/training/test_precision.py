"""``training.precision: auto`` is what the device computes fast, and the run says and records it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openvse.report.records import METRICS, read_records
from openvse.tasks.run import train
from openvse.training.records import Silent
from tests.tiny import tiny_recipe, write_tiny_corpus

pytestmark = pytest.mark.medium


class Listener(Silent):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_is_what_the_processor_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bf16: bool
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True, "avx512_bf16": has_bf16})
    listener, corpus = Listener(), write_tiny_corpus(tmp_path / "corpus")
    train(tiny_recipe(corpus, precision="auto", device="cpu"), tmp_path / "run", watcher=listener)
    precision = "bf16" if has_bf16 else "fp32"
    assert f"precision: {precision}" in listener.notes
    assert read_records(tmp_path / "run" / METRICS).of("environment")[0]["precision"] == precision


def test_bf16_on_a_processor_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True})
    listener, corpus = Listener(), write_tiny_corpus(tmp_path / "corpus")
    train(tiny_recipe(corpus, precision="bf16", device="cpu"), tmp_path / "run", watcher=listener)
    assert any("set training.precision=auto or fp32" in warning for warning in listener.warnings)
