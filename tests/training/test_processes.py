"""A run of two processes equals a run of one, and goes on with another number of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import train
from tests.tiny import read_metrics, tiny_tree, write_tiny_corpus

ROOT = Path(__file__).parent.parent.parent


def run(num_processes: int, *arguments: str | Path) -> str:
    """Train in processes of their own, as torchrun starts them; return what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "openvse.cli", "train", *map(str, arguments)],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_processes)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_processes)
    ]
    told = [process.communicate(timeout=300)[0] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(told)
    return told[0]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(folder) if record["kind"] == "train"]


@pytest.mark.slow
def test_two_processes_train_as_one_and_the_number_may_change(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", train=64)
    tree = tiny_tree(corpus, phases=[{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 7}])
    tree["image"]["encoder"]["augmentation"] = tree["text"]["encoder"]["size_augmentation"] = "none"
    train(parse_recipe(tree), tmp_path / "one")
    recipe = tmp_path / "one" / "recipe.yaml"
    run(2, recipe, "training.phases.1.epochs=6", "--out", tmp_path / "two")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert (len(one), len(two)) == (64, 56) and two[:50] == pytest.approx(one[:50], rel=1e-5)
    (tmp_path / "two" / "recipe.yaml").write_text(recipe.read_text())
    told = run(1, recipe, "--out", tmp_path / "two", "--resume")
    assert "the run had 2 process(es) and goes on with 1" in told
    resumed = losses(tmp_path / "two")
    assert resumed[:56] == two and len(resumed) == 64 and all(loss < two[0] for loss in resumed[56:])
