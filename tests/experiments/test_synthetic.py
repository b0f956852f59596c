"""The synthetic experiment: patterns against their definitions, learning, its report and its command."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer.main
from typer.testing import CliRunner

import openvse.cli.commands  # noqa: F401 - registers the commands
from openvse.aggregators import GPO
from openvse.aggregators.gpo import MLP
from openvse.cli.app import app
from openvse.errors import OpenVSEError, TrainingError
from openvse.experiments import (
    DESIGNS,
    PATTERNS,
    PUBLISHED,
    DesignResult,
    Schedule,
    SyntheticReport,
    find,
    find_all,
)
from openvse.experiments.synthetic import SEEN, SHOWN_SIZE, TESTED, coefficient_errors, learn

SHORT = Schedule(steps=20, num_sets=2, width=4)


def slow_pattern(name: str, size: int) -> list[float]:
    """The coefficients of one size from the words of the paper."""
    if name == "L":
        falling = [size - k for k in range(size)]
        return [value / sum(falling) for value in falling]
    top = {"A": size, "M-1": 1, "M-10": min(10, size), "T-50%": math.ceil(size / 2)}[name]
    return [1 / top if k < top else 0.0 for k in range(size)]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_what_the_paper_says(name: str) -> None:
    sizes = [1, 2, 9, 10, 11, 37]
    result = PATTERNS[name](torch.tensor(sizes))
    expected = torch.zeros(len(sizes), max(sizes))
    for row, size in enumerate(sizes):
        expected[row, :size] = torch.tensor(slow_pattern(name, size))
    torch.testing.assert_close(result, expected)


def test_errors_are_those_of_a_loop() -> None:
    torch.manual_seed(0)
    gpo = GPO(input_dim=1, embed_dim=1)
    errors = coefficient_errors(gpo, "L")
    assert len(errors) == len(TESTED)
    for size in (10, 57, 120):
        theta = gpo.coefficients(torch.tensor([size]))[0].tolist()
        truth = slow_pattern("L", size)
        mean = sum((a - b) ** 2 for a, b in zip(theta, truth, strict=True)) / size
        assert errors[size - TESTED.start].item() == pytest.approx(math.sqrt(mean), abs=1e-6)


@pytest.mark.medium
def test_learning_comes_near_the_pattern() -> None:
    torch.manual_seed(0)
    gpo = GPO(input_dim=64, embed_dim=64, generator=MLP)
    before = coefficient_errors(gpo, "M-1")
    learn(gpo, "M-1", Schedule(steps=60, learning_rate=0.02, num_sets=8, width=64), seed=0)
    after = coefficient_errors(gpo, "M-1")
    assert (after[10:91] < 0.1 * before[10:91]).all()


def test_the_rate_climbs_and_falls() -> None:
    schedule = Schedule(steps=100)
    factors = [schedule.rate_factor(step) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5] == 1 and factors[-1] < 0.001
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert Schedule(steps=1).rate_factor(0) == 1


@pytest.mark.medium
def test_learning_sees_only_the_sizes_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()
    original = GPO.coefficients
    monkeypatch.setattr(
        GPO, "coefficients", lambda self, sizes: asked.update(sizes.tolist()) or original(self, sizes)
    )
    gpo = GPO(input_dim=4, embed_dim=4, generator=MLP)
    learn(gpo, "A", Schedule(steps=50, width=4), seed=0)
    assert asked == set(SEEN)


def test_a_seed_gives_the_same_numbers_and_leaves_the_global_one() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = (find("sin/cos + MLP", "L", SHORT, seed=1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.errors, first.coefficients) == (second.errors, second.coefficients)
    assert first.errors != find("sin/cos + MLP", "L", SHORT, seed=2).errors
    assert len(first.coefficients) == SHOWN_SIZE
    assert sum(first.coefficients) == pytest.approx(1.0, abs=1e-5)


def test_rmse_of_a_range_counts_its_sizes_alike() -> None:
    errors = [3.0 if size < 20 else 4.0 if size > 100 else 0.0 for size in TESTED]
    result = DesignResult("sin/cos + BiGRU", "A", errors, [], 1.0)
    assert result.rmse(SEEN) == 0
    assert result.rmse(range(10, 20)) == pytest.approx(3.0)
    assert result.rmse(range(19, 21)) == pytest.approx(math.sqrt(4.5))


def test_the_published_table_is_complete() -> None:
    assert len(PUBLISHED) == 4 * 3 * 5
    assert {key[0] for key in PUBLISHED} == set(DESIGNS)
    assert PUBLISHED["sin/cos + BiGRU", "seen", "M-10"] == 0.010
    assert PUBLISHED["interpolation", "smaller", "M-10"] == 0.141


def report() -> SyntheticReport:
    """Every design misses by its own number, far from the trained sizes by ten times as much."""
    results = [
        DesignResult(
            design, pattern, [level if size in SEEN else 10 * level for size in TESTED], [0.02] * 50, 2.0
        )
        for level, design in zip((0.004, 0.003, 0.002, 0.0001), DESIGNS, strict=True)
        for pattern in PATTERNS
    ]
    return SyntheticReport(results, SHORT, 7)


def test_the_tables_put_ours_beside_the_published() -> None:
    page = report().to_markdown()
    seen, unseen = page.split("## Unseen sizes, 10 to 19 / 101 to 120")
    assert "## Seen sizes, 20 to 100" in seen
    assert "| interpolation | .004 (0) | .004 (.065) | .004 (.030) | .004 (.011) | .004 (.004) |" in seen
    assert "| sin/cos + BiGRU | 0 (0) | 0 (.005) | 0 (.010) | 0 (.006) | 0 (0) |" in seen
    assert "| .020 / .020 (.052 / .018) |" in unseen
    assert "20 steps of 2 sets of width 4" in unseen
    assert "seed 7; 40 s of training" in unseen


@pytest.mark.medium
def test_a_saved_report_holds_everything(tmp_path: Path) -> None:
    folder = report().save(tmp_path / "deep" / "out")
    assert {path.name for path in folder.iterdir()} == {"synthetic.json", "synthetic.md", "synthetic.png"}
    content = json.loads((folder / "synthetic.json").read_text())
    assert len(content["table"]) == len(PUBLISHED)
    assert [run["design"] for run in content["runs"]] == [*DESIGNS] * len(PATTERNS)
    assert content["schedule"]["steps"] == SHORT.steps
    assert (folder / "synthetic.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.medium
def test_the_plot_shows_truth_designs_and_trained_sizes() -> None:
    shuffled = replace(report(), results=report().results[::-1])  # processes end in any order
    figure = shuffled.plot()
    top, bottom = figure.axes[0], figure.axes[5]
    assert [line.get_label() for line in top.lines] == ["truth", *DESIGNS]
    assert top.get_title() == "A"
    assert bottom.get_yscale() == "log"
    assert [list(line.get_xdata()) for line in bottom.lines] == [list(TESTED)] * len(DESIGNS)
    assert [line.get_ydata()[-1] for line in bottom.lines] == [0.04, 0.03, 0.02, 0.001]
    colours = [line.get_color() for line in top.lines[1:]]
    assert colours == [line.get_color() for line in bottom.lines]
    assert len(set(colours)) == len(DESIGNS)


def test_the_plot_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OpenVSEError, match=r"openvse\[analysis\]"):
        report().plot()


@pytest.mark.slow
def test_every_design_meets_every_pattern_in_other_processes() -> None:
    tiny = replace(SHORT, steps=1)
    result = list(find_all(tiny, seed=3, processes=1))
    assert {(each.design, each.pattern) for each in result} == {(d, p) for d in DESIGNS for p in PATTERNS}
    alone = find("interpolation", "M-10", tiny, seed=3)
    there = next(each for each in result if (each.design, each.pattern) == ("interpolation", "M-10"))
    assert there.errors == pytest.approx(alone.errors)


@pytest.mark.slow
def test_a_killed_process_ends_in_one_line() -> None:
    runs = find_all(replace(SHORT, steps=10**6), seed=0, processes=1)
    with ThreadPoolExecutor(1) as waiting:
        first = waiting.submit(next, runs)
        while not (children := multiprocessing.active_children()):
            time.sleep(0.05)
        children[0].kill()
        with pytest.raises(TrainingError, match="one of 1 training processes was killed"):
            first.result(timeout=60)


@pytest.mark.medium
def test_the_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Schedule, int, int]] = []

    def found_at_once(
        schedule: Schedule, *, seed: int, processes: int, done: set[tuple[str, str]]
    ) -> list[DesignResult]:
        calls.append((schedule, seed, processes))
        return [result for result in report().results if (result.design, result.pattern) not in done]

    monkeypatch.setattr("openvse.experiments.find_all", found_at_once)
    words = ["synthetic", "--out", str(tmp_path / "out"), "--seed", "4", "--steps", "50", "--processes", "3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert calls == [(Schedule(steps=50), 4, 3)]
    assert "| sin/cos + BiGRU | 0 (0)" in result.stdout
    assert (tmp_path / "out" / "synthetic.md").read_text() in result.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"synthetic.{end}" for end in ("json", "md", "png")
    }


@pytest.mark.medium
def test_a_killed_experiment_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[tuple[str, str]]] = []

    def killed_after_three(*_: object, done: set[tuple[str, str]], **__: object) -> Iterator[DesignResult]:
        asked.append(set(done))
        left = [result for result in report().results if (result.design, result.pattern) not in done]
        yield from left[:3]
        if len(left) > 17:
            raise TrainingError("killed")
        yield from left[3:]

    monkeypatch.setattr("openvse.experiments.find_all", killed_after_three)
    words = ["synthetic", "--out", str(tmp_path), "--steps", "20"]
    assert CliRunner().invoke(app, words).exit_code == 2
    other_seed = CliRunner().invoke(app, [*words, "--seed", "1"])
    assert (other_seed.exit_code, asked[-1]) == (2, set())
    assert CliRunner().invoke(app, [*words, "--seed", "1"]).exit_code == 0
    assert len(asked[-1]) == 3
    assert json.loads((tmp_path / "synthetic.json").read_text())["seed"] == 1
    assert not (tmp_path / "synthetic.unfinished.json").exists()


@pytest.mark.slow
def test_a_result_that_is_done_is_not_made_again() -> None:
    every = {(design, pattern) for design in DESIGNS for pattern in PATTERNS}
    last = ("interpolation", "A")
    (result,) = find_all(replace(SHORT, steps=1), seed=0, processes=1, done=every - {last})
    assert (result.design, result.pattern) == last


def test_the_command_has_the_schedule_of_the_library() -> None:
    command = typer.main.get_command(app).commands["synthetic"]
    defaults = {option.name: option.default for option in command.params}
    assert Schedule(steps=defaults["steps"], learning_rate=defaults["learning_rate"]) == Schedule()
