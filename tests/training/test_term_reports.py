"""What terms report reaches the log, at the pace of the log, and changes nothing."""

from pathlib import Path

import pytest
import torch

from openvse.model.two_tower import TwoTower
from openvse.tasks.load import load_as
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tiny import read_metrics, tiny_tree

pytestmark = pytest.mark.medium


def test_the_adaptive_miner_reports_as_often_as_the_loss(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 2}], log_every=3)
    tree["objective"]["ranking"] = {
        "name": "contrast",
        "miner": "adaptive_top_k",
        "criterion": {"name": "info_nce", "temperature": 0.05, "margin": 0.2},
    }
    run_recipe(parse_recipe(tree), tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    steps = {
        kind: [record["global_step"] for record in records if record["kind"] == kind]
        for kind in ("train", "diagnostics")
    }
    assert steps["diagnostics"] == steps["train"] == [3, 4, 7, 8]
    report = next(record for record in records if record["kind"] == "diagnostics")
    assert 1 <= report["ranking.i2t_num_negatives"] <= 15
    assert -1 <= report["ranking.i2t_align"] <= 1
    assert report["ranking.t2i_uniformity"] > 0


def test_coefficients_of_gpo_are_logged_after_each_epoch(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 2}])
    tree["image"]["aggregator"] = {"name": "multi_view", "aggregator": "gpo", "num_views": 2}
    result = run_recipe(parse_recipe(tree), tmp_path / "run")
    curves = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "curves"]
    assert [record["epoch"] for record in curves] == [1, 2]
    model = load_as(TwoTower, tmp_path / "run" / "best")
    last = curves[-1]
    wanted = {"image.view1.coefficients_36", "image.view2.coefficients_36", "text.coefficients_10"}
    assert wanted < last.keys()
    assert len(last["text.coefficients_10"]) == 10
    assert sum(last["text.coefficients_10"]) == pytest.approx(1, abs=1e-5)
    best = next(record for record in curves if record["epoch"] == result.progress.best_epoch)
    expected = model.text.aggregator.coefficients(torch.tensor([10]))[0]
    torch.testing.assert_close(torch.tensor(best["text.coefficients_10"]), expected, rtol=1e-4, atol=1e-6)


def test_terms_without_reports_and_aggregators_without_curves_write_none(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 1}])
    tree["image"]["aggregator"] = tree["text"]["aggregator"] = "mean"
    run_recipe(parse_recipe(tree), tmp_path / "run")
    kinds = {record["kind"] for record in read_metrics(tmp_path / "run")}
    assert kinds == {"data", "vocabulary", "train", "validation"}
