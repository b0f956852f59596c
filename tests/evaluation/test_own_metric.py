"""A metric of one's own, in one file: reports, tables, the choice of a model and sweeps have it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import openvse
from openvse.errors import OpenVSEError, RecipeError
from openvse.evaluation import METRICS
from openvse.evaluation.metrics import metric_names
from openvse.registry import load_plugin
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from openvse_papers.analysis.sweep import check_metrics
from tests.naming import names, refusal
from tests.tiny import read_metrics, tiny_tree, write_tiny_corpus

PLUGIN = """
from openvse.evaluation import METRICS, Metric

def lowest(direction):
    return float(direction.ranks.max())

METRICS.add("r2", Metric("R@2", lambda direction: direction.ranks <= 2, lambda m, n: 2 * m / n))
METRICS.add("lowest", Metric("Lowest", lowest, unit=1.0, less_is_better=True, detail=1))
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a plug-in, which is forgotten after the test."""
    monkeypatch.setattr(METRICS, "_parts", dict(METRICS._parts))
    monkeypatch.setattr("openvse.registry._plugins", [])
    (tmp_path / "mine.py").write_text(PLUGIN)
    load_plugin(tmp_path / "mine.py")
    monkeypatch.delitem(sys.modules, "openvse_plugin_mine")


def test_reports_and_tables_have_it() -> None:
    report = openvse.evaluate(np.eye(8), np.eye(8)[[0, 1, 2, 3, 4, 5, 7, 6]])
    assert report.metrics["i2t_r2"] == 75.0 and report.metrics["t2i_lowest"] == 8.0
    assert report.chance["i2t_r2"] == 25.0 and "i2t_lowest" not in report.chance
    low, high = report.intervals["i2t_r2"]
    assert low <= 75.0 <= high and "i2t_lowest" not in report.intervals
    shown = report.to_markdown()
    assert "| i2t R@1 | i2t R@5 | i2t R@10 | i2t R@2 |" in shown and "| i2t Lowest | t2i Lowest |" in shown
    assert {"t2i_r2"} == {*metric_names()} & {"t2i_r2", "t2i_lowest", "t2i_medr"}
    assert {"t2i_r2", "t2i_lowest"} < {*metric_names(1)}


def test_sweeps_and_the_choice_of_a_model_take_it(tmp_path: Path) -> None:
    assert check_metrics(["t2i_r2", "i2t_lowest"]) == ("t2i_r2", "i2t_lowest")
    assert names(refusal(OpenVSEError, check_metrics, ["i2t_r3"]), "'i2t_r2'")
    tree = tiny_tree(write_tiny_corpus(tmp_path / "data"), select_by="i2t_r2")
    run = run_recipe(parse_recipe(tree), tmp_path / "run")
    validated = [each["i2t_r2"] for each in read_metrics(tmp_path / "run") if each["kind"] == "validation"]
    assert run.progress.metric == "i2t_r2" and run.progress.best_score == max(validated)
    for wrong in ("i2t_lowest", "i2t_map_at_r", "accuracy", "i2t_r3"):
        with pytest.raises(RecipeError, match=f"select_by is {wrong}.*i2t_r2"):
            parse_recipe(tiny_tree(tmp_path / "data", select_by=wrong))


def test_what_is_no_metric_is_refused() -> None:
    METRICS.add("mine", lambda direction: direction.ranks <= 2)
    assert names(refusal(RecipeError, lambda: openvse.evaluate(np.eye(3), np.eye(3))), "metric 'mine'")
