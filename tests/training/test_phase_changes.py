"""What a phase says when it begins, and what a small validation split says."""

from __future__ import annotations

from pathlib import Path

import pytest

from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import train
from openvse.training.inputs import small_split_warning, widest_interval
from openvse.training.schedule import announcement, phase_changes
from tests.tiny import Recorder, Stop, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus


def test_another_miner_is_another_scale() -> None:
    recipe = load_recipe("vse_infinity/folder_cpu")
    assert phase_changes(recipe, 1) == {"objective.ranking.miner": ("all", "hardest")}
    line = announcement(recipe, 1)
    assert line.startswith("phase 2 of 3 begins with epoch 3: ranking.miner is hardest (was all), ")
    assert "the learning rate warms up over 1 epoch(s); the loss has another scale from here on" in line
    assert announcement(recipe, 2) == (
        "phase 3 of 3 begins with epoch 20: learning_rate is 5e-05 (was 0.0005)"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("ranking.reduction: mean", {"objective.ranking.reduction": ("sum", "mean")}),
        (
            "ranking.criterion: {name: info_nce, temperature: 0.05}",
            {
                "objective.ranking.criterion": ("hinge", "info_nce"),
                "objective.ranking.criterion.margin": (0.2, None),
                "objective.ranking.criterion.temperature": (None, 0.05),
            },
        ),
        ("ranking.miner: {name: hardest}", {}),
    ],
)
def test_changes_of_the_objective(override: str, expected: dict) -> None:
    phases = f"training.phases=[{{epochs: 1}}, {{epochs: 1, objective: {{{override}}}}}]"
    recipe = load_recipe("vse_infinity/folder_cpu", [phases])
    assert phase_changes(recipe, 1) == expected


def test_frozen_parts_are_named() -> None:
    phases = "training.phases=[{epochs: 1, frozen: [image, text]}, {epochs: 2}, {epochs: 1}]"
    recipe = load_recipe("vse_infinity/folder_cpu", [phases])
    assert announcement(recipe, 1) == "phase 2 of 3 begins with epoch 2: frozen is nothing (was image, text)"
    assert announcement(recipe, 2) == "phase 3 of 3 begins with epoch 4: no change"


def test_a_run_announces_each_phase_once_also_when_it_is_resumed(tmp_path: Path) -> None:
    tree = tiny_tree(write_tiny_corpus(tmp_path / "data"))
    tree["training"]["phases"] = [{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 2}]
    recipe = parse_recipe(tree)
    watcher = Recorder(stop=6)  # of four steps an epoch
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", watcher=watcher)
    watcher.stop = None
    train(recipe, tmp_path / "run", watcher=watcher, resume=True)
    assert {note for note in watcher.notes if not note.startswith("vocabulary")} == {announcement(recipe, 1)}
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "phase"]
    (record,) = records
    assert (record["phase"], record["epoch"], record["global_step"]) == (2, 2, 5)
    assert record["sets"] == {"objective.ranking.miner": "hardest"}


def test_a_small_split_says_how_wide_its_intervals_are(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "data")
    watcher = Recorder()
    train(tiny_recipe(corpus), tmp_path / "run", watcher=watcher)
    (warning,) = [each for each in watcher.warnings if each.startswith("validation")]
    assert "only 8 images: the 95 % interval of a recall reaches up to 35 points to either side" in warning


def test_widths() -> None:
    assert widest_interval(25) == pytest.approx(19.6)
    assert small_split_warning(100, "images", "a recall") == ""
    assert "99 images" in small_split_warning(99, "images", "a recall")
