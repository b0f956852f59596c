"""The examples run as they stand and print what they promise."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import openvse
from openvse.aggregators import AGGREGATORS
from openvse.datasets import DATASETS

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch, capsys) -> Run:
    """Return what runs an example in an empty folder and returns what it prints; registrations are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    for registry in (AGGREGATORS, DATASETS):
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))

    def start(name: str) -> str:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        sys.modules.pop("shapes", None)
        return capsys.readouterr().out

    return start


def number(text: str, before: str) -> float:
    """Return the number that follows some words."""
    found = re.search(re.escape(before) + r"\s*([-+]?[\d.]+)", text)
    assert found is not None, f"{before!r} is not in {text!r}"
    return float(found.group(1))


def test_examples_are_short() -> None:
    lines = {script.stem: len(script.read_text().splitlines()) for script in SCRIPTS}
    assert {name: count for name, count in lines.items() if count >= (41 if name == "own_loop" else 60)} == {}


def test_every_example_is_run_and_listed() -> None:
    names = {script.stem for script in SCRIPTS}
    source = Path(__file__).read_text()
    on_a_page = {"own_loop"}  # docs/parts.md, which tests/cli/test_pages.py runs
    assert {name for name in names if f'run("{name}")' not in source} == on_a_page
    page = (EXAMPLES.parent / "docs" / "parts.md").read_text()
    assert {name for name in names if f"{name}.py" not in page} == set()


def test_shapes(run: Run, tmp_path: Path) -> None:
    assert run("shapes") == "48 images in the folder shapes\n"
    assert len(openvse.datasets.open_corpus(tmp_path / "shapes")) == 48


@pytest.mark.medium
def test_pool_in_your_model(run: Run) -> None:
    assert number(run("pool_in_your_model"), "accuracy on new sentences:") > 90


@pytest.mark.medium
def test_loss_in_your_loop(run: Run) -> None:
    printed = run("loss_in_your_loop")
    assert number(printed, "epoch 5: AdOpt") < number(printed, "epoch 1: AdOpt")
    assert "# Retrieval on the training items" in printed and "200 images, 1,000 texts" in printed


@pytest.mark.medium
def test_evaluate_arrays(run: Run, tmp_path: Path) -> None:
    printed = run("evaluate_arrays")
    assert number(printed, "RSUM ") == number(printed, "the same in another order:")
    assert (tmp_path / "report" / "report.md").is_file()


@pytest.mark.medium
def test_plugin_dataset(run: Run) -> None:
    assert run("plugin_dataset").startswith("48 images, 38 of them for training")


@pytest.mark.medium
def test_plugin_gpo_start(run: Run) -> None:
    theta = [float(value) for value in run("plugin_gpo_start").strip(" []\n").split(",")]
    assert len(theta) == 10
    assert sum(theta[:5]) > 0.7


def test_plugin_pooling(run: Run) -> None:
    assert run("plugin_pooling").startswith("tensor(")
    assert "power" in AGGREGATORS


@pytest.mark.slow
def test_search_from_python(run: Run, tmp_path: Path) -> None:
    printed = run("search_from_python")
    assert "48 images indexed, 0 that cannot be read" in printed
    assert "a small blue square: small_blue_square.png" in printed
    assert (tmp_path / "hits.html").read_text().count("<img") == 8


@pytest.mark.medium
def test_compare_two_poolings(run: Run) -> None:
    printed = run("compare_two_poolings")
    low, high = number(printed, "95 % interval"), number(printed, " to")
    assert low < number(printed, "gpo minus mean:") < high
    assert ("the difference is shown" in printed) == (low > 0 or high < 0)
