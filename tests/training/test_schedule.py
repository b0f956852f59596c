"""The learning rate: phases and warm-up, the plateau rule against PyTorch's, and what a phase says when it begins."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openvse.errors import RecipeError
from openvse.evaluation.metrics import chance_metrics, choosing_metrics
from openvse.specs.recipe import OptimizerSpec, PhaseSpec, PlateauSpec
from openvse.tasks.recipes import load_recipe, parse_recipe
from openvse.tasks.run import run_recipe
from openvse.training.inputs import small_split_warning
from openvse.training.optimizer import Plateau, Schedule, announcement, phase_changes
from openvse.types import Relevance
from tests.naming import names
from tests.tiny import Recorder, Stop, read_metrics, tiny_recipe, tiny_tree, write_tiny_corpus


def test_learning_rate_of_vse_infinity() -> None:
    phases = [PhaseSpec(epochs=1), PhaseSpec(epochs=14, warmup_epochs=1), PhaseSpec(epochs=10, learning_rate=5e-5)]
    schedule = Schedule(OptimizerSpec(learning_rate=5e-4), phases, steps_per_epoch=10)
    assert schedule.num_epochs == 25
    assert [schedule.phase_index(epoch) for epoch in (0, 1, 14, 15, 24)] == [0, 1, 1, 2, 2]
    assert schedule.learning_rate(0, 3) == 5e-4
    warmup = [schedule.learning_rate(1, step) for step in range(10)]
    assert warmup == pytest.approx([5e-4 * (step + 1) / 10 for step in range(10)])
    assert schedule.learning_rate(2, 0) == 5e-4
    assert schedule.learning_rate(15, 0) == 5e-5
    with pytest.raises(IndexError):
        schedule.learning_rate(25, 0)


def test_warmup_may_last_part_of_an_epoch() -> None:
    schedule = Schedule(OptimizerSpec(learning_rate=1.0), [PhaseSpec(epochs=2, warmup_epochs=0.5)], 10)
    assert [schedule.learning_rate(0, step) for step in (0, 4, 5)] == pytest.approx([0.2, 1.0, 1.0])


@pytest.mark.medium
@settings(deadline=None)
@given(
    st.lists(st.floats(0, 600) | st.integers(0, 4), min_size=1, max_size=30),
    st.integers(0, 4),
    st.sampled_from([0.5, 0.1]),
    st.sampled_from(["max", "min"]),
    st.sampled_from([0.0, 1e-4, 0.3]),
)
def test_equals_pytorch(values: list[float], patience: int, factor: float, mode: str, threshold: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, factor=factor, patience=patience, threshold=threshold, eps=0.0
    )
    spec = PlateauSpec(patience=patience, factor=factor, mode=mode, threshold=threshold)
    plateau = Plateau()
    for value in values:
        oracle.step(float(value))
        plateau = plateau.after(float(value), spec)
        assert plateau.rate_factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert plateau.best == (oracle.best if mode == "max" else -oracle.best)


def test_the_released_schedule_of_pvse_halves_while_rsum_rises() -> None:
    """Its scheduler is PyTorch's with the defaults, mode min and patience 10 among them, given RSUM."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, min_lr=1e-10)
    spec, plateau, halved = PlateauSpec(patience=10, mode="min", threshold=1e-4), Plateau(), []
    for epoch in range(50):
        before = plateau.rate_factor
        oracle.step(300.0 + epoch)
        plateau = plateau.after(300.0 + epoch, spec)
        assert 2e-4 * plateau.rate_factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        halved += [epoch] if plateau.rate_factor < before else []
    assert halved == [11, 22, 33, 44]


def test_an_example_by_hand() -> None:
    spec, plateau, factors = PlateauSpec(patience=1), Plateau(), []
    for value in (10.0, 20.0, 20.0, 19.0, 21.0, 5.0, 6.0, 7.0, 8.0):
        plateau = plateau.after(value, spec)
        factors.append(plateau.rate_factor)
    assert factors == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_every_metric_that_it_offers_is_measured_and_is_better_when_larger() -> None:
    pairs = np.arange(4)
    measured = chance_metrics(Relevance(pairs, pairs, 4, 4))
    assert {*choosing_metrics()} == {name for name in measured if name == "rsum" or "_r" in name}


@pytest.mark.parametrize(
    ("plateau", "message"),
    [
        ({}, r"training\.plateau\.patience"),
        ({"patience": -1}, r"training\.plateau\.patience.*0"),
        ({"patience": 1, "factor": 1.0}, r"training\.plateau\.factor.*1"),
        ({"patience": 1, "metric": "i2t_medr"}, r"training: plateau\.metric is i2t_medr.*i2t_r1"),
        ({"patience": 1, "mode": "maximum"}, r"training\.plateau\.mode.*'max'.*'min'.*'maximum'"),
        ({"patience": 1, "threshold": -0.1}, r"training\.plateau\.threshold.*0"),
        ({"patience": 1, "metrics": "rsum"}, "training.plateau.metrics.*'metric'"),
    ],
)
def test_a_wrong_plateau_names_its_place(plateau: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(tiny_tree(Path(), plateau=plateau))
    assert "\n" not in str(caught.value)


def test_the_recipe_of_pvse_halves() -> None:
    recipe = load_recipe("pvse/coco_grids_bigru")
    assert recipe.training.plateau == PlateauSpec(factor=0.5, patience=9, metric="rsum")


def test_another_miner_is_another_scale() -> None:
    recipe = load_recipe("vse_infinity/folder_cpu")
    assert phase_changes(recipe, 1) == {"objective.ranking.miner": ("all", "hardest")}
    assert names(announcement(recipe, 1), 2, 3, 3, "ranking.miner", "hardest", "all")
    assert names(announcement(recipe, 2), 3, 3, 20, "learning_rate", "5e-05", 0.0005)


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
    assert names(announcement(recipe, 1), 2, 3, 2, "image, text")
    assert names(announcement(recipe, 2), 3, 3, 4)


@pytest.mark.medium
def test_a_run_announces_each_phase_once_also_when_it_is_resumed(tmp_path: Path) -> None:
    tree = tiny_tree(write_tiny_corpus(tmp_path / "data"))
    tree["training"]["phases"] = [{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 2}]
    recipe = parse_recipe(tree)
    watcher = Recorder(stop=6)  # of four steps an epoch
    with pytest.raises(Stop):
        run_recipe(recipe, tmp_path / "run", watcher=watcher)
    watcher.stop = None
    run_recipe(recipe, tmp_path / "run", watcher=watcher, resume=True)
    assert {note for note in watcher.notes if not note.startswith("vocabulary")} == {announcement(recipe, 1)}
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "phase"]
    (record,) = records
    assert (record["phase"], record["epoch"], record["global_step"]) == (2, 2, 5)
    assert record["sets"] == {"objective.ranking.miner": "hardest"}


@pytest.mark.medium
def test_a_small_split_says_how_wide_its_intervals_are(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "data")
    watcher = Recorder()
    run_recipe(tiny_recipe(corpus), tmp_path / "run", watcher=watcher)
    (warning,) = [each for each in watcher.warnings if each.startswith("validation")]
    assert re.search("8.*95.*35", warning)


def test_widths() -> None:
    assert "20" in small_split_warning(25, "images", "a recall")
    assert small_split_warning(100, "images", "a recall") == ""
    assert "99" in small_split_warning(99, "images", "a recall")
