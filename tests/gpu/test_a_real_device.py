"""What only a GPU can show: `make gpu-check` runs it where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from openvse.tasks.run import train
from openvse.training.trainer import Trainer
from tests.tiny import Recorder, tiny_recipe, write_tiny_corpus

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU on this machine"),
]


def test_a_run_learns_as_on_a_cpu_and_no_step_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch itself refuses what waits for the device in a step."""
    plain = Trainer._step

    def step(trainer: Trainer, taken: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if trainer.accelerator.device.type == "cuda" else "default")
        try:
            plain(trainer, taken)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Trainer, "_step", step)
    corpus, losses = write_tiny_corpus(tmp_path / "tiny"), {}
    for device in ("cpu", "cuda"):
        watcher = Recorder()
        train(tiny_recipe(corpus, device=device, precision="fp32"), tmp_path / device, watcher=watcher)
        losses[device] = [report.loss for report in watcher.epochs]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)
