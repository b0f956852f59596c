"""What only a GPU can show: `make gpu-check` runs it where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.conftest import bert_checkpoint  # noqa: F401 - a fixture
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.trainer import Trainer
from tests.device.small_recipes import OF_METHODS, small
from tests.device.test_commands_on_a_device import COMMANDS, invoke, write_places
from tests.tiny import Recorder, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus
from tests.tiny_questions import answering_tree, write_tiny_questions

pytestmark = pytest.mark.medium
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"), train=8, validation=4)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch itself refuse what waits for the device in an epoch, but where the log reads its numbers."""
    epoch, read = Trainer._train_epoch, Trainer._read

    def strict(trainer: Trainer, log: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if trainer.accelerator.device.type == "cuda" else "default")
        try:
            epoch(trainer, log)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def lenient(trainer: Trainer, more: Any) -> Any:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(trainer, more)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(Trainer, "_train_epoch", strict)
    monkeypatch.setattr(Trainer, "_read", lenient)
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_a_run_learns_as_on_a_cpu_and_no_step_waits(tmp_path: Path, refused: None) -> None:
    """Nothing is drawn at random, since a GPU draws other numbers."""
    corpus, losses = write_tiny_corpus(tmp_path / "tiny"), {}
    tree = tiny_tree(corpus, precision="fp32")
    tree["image"]["encoder"] |= {"augmentation": "none"}
    tree["text"]["encoder"] |= {"size_augmentation": "none"}
    for device in ("cpu", "cuda"):
        watcher = Recorder()
        tree["training"] |= {"device": device}
        run_recipe(parse_recipe(tree), tmp_path / device, watcher=watcher)
        losses[device] = [report.loss for report in watcher.epochs]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=2e-3)  # cuDNN rounds the products of a GRU


@pytest.mark.parametrize("name", OF_METHODS)
def test_no_step_of_a_method_waits(
    name: str,
    corpus: Path,
    bert_checkpoint: str,  # noqa: F811
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if not name.startswith("score_attention"):  # it must know which pairs have a gradient
        request.getfixturevalue("refused")
    watcher = Recorder()
    run_recipe(small(name, corpus, bert_checkpoint, "cuda"), tmp_path / "run", watcher=watcher)
    assert watcher.epochs
    assert all(0 <= report.loss < float("inf") for report in watcher.epochs)


def test_answering_waits_for_nothing(tmp_path: Path, refused: None) -> None:
    tree = answering_tree(write_tiny_questions(tmp_path / "questions"), device="cuda", log_every=100)
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    assert len(watcher.epochs) == 3


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_with_clipping_and_the_mean_of_weights(
    precision: str, corpus: Path, tmp_path: Path, refused: None
) -> None:
    more = {"clip_norm": 1.0, "average": {"decay": 0.9}, "precision": precision}
    watcher = Recorder()
    run_recipe(tiny_recipe(corpus, device="cuda", batch_size=4, **more), tmp_path / "run", watcher=watcher)
    assert all(0 <= report.loss < float("inf") for report in watcher.epochs)


def test_a_run_resumes_to_the_same_numbers(corpus: Path, tmp_path: Path) -> None:
    first, both = [{"epochs": 1}], [{"epochs": 2}]
    run_recipe(tiny_recipe(corpus, device="cuda", batch_size=4, phases=both), tmp_path / "whole")
    run_recipe(tiny_recipe(corpus, device="cuda", batch_size=4, phases=first), tmp_path / "cut")
    run_recipe(tiny_recipe(corpus, device="cuda", batch_size=4, phases=both), tmp_path / "cut", resume=True)
    whole, cut = ([r for r in read_metrics(tmp_path / run) if r["kind"] == "train"] for run in ("whole", "cut"))
    assert [record["loss"] for record in cut] == pytest.approx([r["loss"] for r in whole], rel=1e-3)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_places(tmp_path_factory.mktemp("device"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs(name: str, places: dict[str, Path], tmp_path: Path) -> None:
    words = [word.format(**places, out=tmp_path / "out") for word in COMMANDS[name]]
    result = invoke(*words, "--device", "cuda")
    assert result.exit_code == 0, result.output
