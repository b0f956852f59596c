"""A run of two processes equals a run of one, and goes on with another number of processes."""

from pathlib import Path

import pytest

from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tests.forking import side_by_side
from tests.naming import names
from tests.tiny import Recorder, read_metrics, tiny_tree, write_tiny_corpus


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(folder) if record["kind"] == "train"]


@pytest.mark.slow
def test_two_processes_train_as_one_and_the_number_may_change(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", train=64)
    phases = [{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 3}]
    tree = tiny_tree(corpus, phases=phases, plateau={"patience": 5, "metric": "t2i_r10"})
    tree["image"]["encoder"]["augmentation"] = tree["text"]["encoder"]["size_augmentation"] = "none"
    run_recipe(parse_recipe(tree), tmp_path / "one")
    recipe = tmp_path / "one" / "recipe.yaml"
    printed = side_by_side(tmp_path, 2, "train", recipe, "training.phases.1.epochs=2", "--out", tmp_path / "two")
    assert printed == [f"{tmp_path / 'two' / 'best'}\n", ""]  # not one line a process
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert (len(one), len(two)) == (32, 24) and two == pytest.approx(one[:24], rel=1e-5)
    (tmp_path / "two" / "recipe.yaml").write_text(recipe.read_text())
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "two", resume=True, watcher=watcher)
    assert any(names(told, "2 process", 1) for told in watcher.warnings + watcher.notes)
    resumed = losses(tmp_path / "two")
    assert resumed[:24] == two and len(resumed) == 32 and all(loss < two[0] for loss in resumed[24:])
