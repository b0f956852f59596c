"""What terms report reaches the log, at the pace of the log, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from openvse.recipe import parse_recipe
from openvse.training import train
from tiny import read_metrics, tiny_tree, write_tiny_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def test_the_adaptive_miner_reports_as_often_as_the_loss(corpus: Path, tmp_path: Path) -> None:
    tree = tiny_tree(corpus, phases=[{"epochs": 2}], log_every=3)
    tree["objective"]["ranking"] = {
        "name": "contrast",
        "miner": "adaptive_top_k",
        "criterion": {"name": "info_nce", "temperature": 0.05, "margin": 0.2},
    }
    train(parse_recipe(tree), tmp_path / "run")
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


def test_terms_without_reports_write_no_records(corpus: Path, tmp_path: Path) -> None:
    train(parse_recipe(tiny_tree(corpus, phases=[{"epochs": 1}])), tmp_path / "run")
    assert {record["kind"] for record in read_metrics(tmp_path / "run")} == {"train", "validation"}
