"""Sweeps over recipes: resumable, with the settings of the papers; and times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from openvse.analysis.speed import (
    analyze_pooling_speed,
    analyze_retrieval_time,
    time_calls,
    time_poolings,
    time_retrieval,
)
from openvse.analysis.sweep import RESULT, Setting, Sweep, Swept, run_sweep
from openvse.analysis.sweep_figures import (
    ablation_settings,
    analyze_ablation,
    analyze_grid,
    analyze_line,
    grid_settings,
    parse_counts,
    parse_numbers,
    parse_seeds,
    parse_weights,
    view_settings,
    weight_settings,
)
from openvse.errors import OpenVSEError
from openvse.tasks.recipes import load_recipe
from tests.analysis.small import is_png, named, plain, small_model
from tests.tiny import Recorder, tiny_tree, write_tiny_corpus


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_corpus(tmp_path_factory.mktemp("tiny") / "data")
    tree = tiny_tree(folder, phases=[{"epochs": 1}])
    tree["image"]["aggregator"] = {"name": "multi_view", "num_views": 3}
    tree["objective"]["bound"] = {"name": "multi_view_bound", "miner": "hardest", "criterion": "hinge"}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow
def test_a_sweep_is_trained_once(recipe: Path, tmp_path: Path) -> None:
    settings = view_settings([1, 2])
    sweep = Sweep(str(recipe), ("training.batch_size=8",), settings, (0, 1), tmp_path / "runs")
    told: list[tuple[str, int, int]] = []
    watcher = Recorder()
    found = run_sweep(replace(sweep, watcher=watcher), lambda *state: told.append(state))
    begun = [line for line in watcher.notes if line.startswith("training ")]
    assert begun == [
        f"training {number} of 4: views_{views}, seed {seed}"
        for number, (views, seed) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)], 1)
    ]
    assert watcher.notes[1].startswith("vocabulary: ")  # told once, and not again by each training
    assert len({*watcher.notes}) == len(watcher.notes) and len({*watcher.warnings}) == len(watcher.warnings)
    assert told == [("trainings", done, 4) for done in (1, 2, 3, 4)]
    assert [each.setting.name for each in found] == ["views_1", "views_2"]
    assert found[0].views == () and len(found[1].views) == 2 and -1 <= found[1].views[0] <= 1
    kept = json.loads((tmp_path / "runs" / "views_2_s1" / RESULT).read_text())
    assert kept["metrics"]["rsum"] == found[1].metrics[1]["rsum"]
    assert kept["recipe"]["image"]["aggregator"] == {"name": "multi_view", "num_views": 2}
    # A run that is stopped before it is measured is neither lost nor trained again.
    (tmp_path / "runs" / "views_2_s1" / RESULT).unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("model.safetensors")}
    assert run_sweep(sweep) == found
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = Sweep(str(recipe), ("training.batch_size=16",), settings, (0,), tmp_path / "runs")
    with pytest.raises(
        OpenVSEError, match=r"views_1_s0 was trained with another training: choose another --out"
    ):
        run_sweep(other)
    with pytest.raises(OpenVSEError, match="num_view"):  # before anything is trained
        run_sweep(
            Sweep(
                str(recipe),
                (),
                [Setting("x", (1.0,), ("image.aggregator.num_view=1",))],
                (0,),
                tmp_path / "y",
            )
        )


def test_settings_are_those_of_the_papers(recipe: Path) -> None:
    grid = grid_settings([1, 5], [2])
    assert [setting.at for setting in grid] == [(1, 2), (5, 2)]
    tree = load_recipe(str(recipe), grid[1].overrides).to_dict()
    assert (tree["image"]["aggregator"], tree["text"]["aggregator"]) == (
        {"name": "k_max", "k": 5}, {"name": "k_max", "k": 2}
    )  # fmt: skip
    weights = load_recipe(str(recipe), weight_settings([0.7])[0].overrides).to_dict()["objective"]
    assert (weights["ranking"]["weight"], weights["bound"]["weight"]) == (0.7, pytest.approx(0.3))
    rows = {each.name: load_recipe(str(recipe), each.overrides).to_dict() for each in ablation_settings()}
    assert [*rows] == ["Tri", "Max", "Avg", "Up", "full"]
    assert rows["Tri"]["image"]["aggregator"]["num_views"] == 1
    assert rows["Avg"]["objective"]["bound"]["name"] == "multi_view_average"
    assert [row["objective"]["ranking"]["weight"] for row in rows.values()] == [1, 1, 0, 0, 0.7]
    assert [row["objective"]["bound"]["weight"] for row in rows.values()] == [0, 0, 1, 1, 0.3]


def test_lists_of_numbers() -> None:
    assert parse_counts("1,5", "--k") == [1, 5] and parse_numbers("0,.5", "--w") == [0, 0.5]
    for text, said in (
        ("1,x", "give numbers"),
        ("1,1", "each number once"),
        ("0,1", "whole numbers"),
        ("1.5", "whole"),
        ("1,inf", "give numbers"),
        ("nan", "give numbers"),
    ):
        with pytest.raises(OpenVSEError, match=said):
            parse_counts(text, "--k")
    assert parse_seeds("0,2", "--seeds") == [0, 2] and parse_weights("0,0.5,1", "--values") == [0, 0.5, 1]
    for text in ("0.5", "-1"):
        with pytest.raises(OpenVSEError, match="whole numbers of 0 or more"):
            parse_seeds(text, "--seeds")
    for text in ("2", "-0.1"):
        with pytest.raises(OpenVSEError, match="numbers from 0 to 1"):
            parse_weights(text, "--values")


def swept(setting: Setting, rsum: float, views: float | None = None) -> Swept:
    metrics = {f"{side}_r{k}": rsum / 6 for side in ("i2t", "t2i") for k in (1, 5, 10)}
    both = ({**metrics, "rsum": rsum}, {**metrics, "rsum": rsum + 2})
    return Swept(setting, (0, 1), both, () if views is None else (views, views))


@pytest.mark.medium
def test_sweeps_are_drawn(tmp_path: Path) -> None:
    cells = [
        swept(setting, 100.0 + number) for number, setting in enumerate(grid_settings([1, 2], [1, 5, 9]))
    ]
    grid = analyze_grid(cells, "validation")
    assert grid.tables[""].rows[0][:2] == (1, 1) and grid.tables[""].rows[0][8] == 101
    assert grid.tables[""].rows[0][9] == pytest.approx(2**0.5)
    assert [row[3] for row in grid.summary.rows] == [""] * 5 + ["best"]
    # Of one seed nobody knows the spread.
    single = [replace(each, seeds=(0,), metrics=each.metrics[:1]) for each in cells]
    assert {row[2] for row in analyze_grid(single, "validation").summary.rows} == {""}
    line = analyze_line(
        "view_weight", [swept(s, 10.0, s.at[0]) for s in weight_settings([0.5, 1.0])], "lambda", "test"
    )
    bars = analyze_ablation([swept(setting, 10.0) for setting in ablation_settings()], "test")
    for found in (grid, line, bars):
        _, png, svg = found.write(tmp_path)
        assert is_png(png)
    drawn = (tmp_path / "view_weight.svg").read_text()
    assert "cosine of two views" in drawn and "mean and standard deviation of 2 seeds" in drawn
    assert "mean of 2 seeds" in (tmp_path / "k_max_grid.svg").read_text()
    assert "RSUM on test" in svg.read_text()


def test_views_that_are_the_same_look_so() -> None:
    same = [swept(setting, 100.0, 0.9995) for setting in view_settings([2, 3])]
    figure = analyze_line("num_views", same, "number of views K", "validation").figures[""]()
    _, cosines = figure.axes
    assert cosines.get_ylim() == (0, 1.05)


def test_times_grow_with_the_gallery() -> None:
    calls: list[int] = []
    assert len(time_calls(lambda: calls.append(1), 3)) == 3 and len(calls) == 4
    tokens = {"name": "tokens"}
    fused = small_model(tokens, tokens, similarity={"name": "fused", "fusion": {"name": "score_attention"}})
    views = small_model({"name": "multi_view", "num_views": 2})
    towers = [named(plain(), "one"), named(views, "two"), named(fused, "pairs")]
    timed = time_retrieval(towers, [50, 10], repeats=1, tokens=5)
    assert [(t.name, t.kind, t.size) for t in timed] == [
        ("one", "1 embedding", 10), ("one", "1 embedding", 50),
        ("two", "2 embeddings", 10), ("two", "2 embeddings", 50),
        ("pairs", "pairs, 5 tokens", 10), ("pairs", "pairs, 5 tokens", 50),
    ]  # fmt: skip
    assert all(t.low <= t.seconds <= t.high for t in timed)


@pytest.mark.medium
def test_poolings_are_timed_and_drawn(tmp_path: Path) -> None:
    speeds = time_poolings(["mean", "gpo", "pie_net"], elements=3, width=8, batch=2, repeats=1)
    found = analyze_pooling_speed(speeds)
    rows = found.summary.rows
    assert [row[0] for row in rows] == ["mean", "gpo", "pie_net"] and min(row[3] for row in rows) == 1
    assert is_png(found.write(tmp_path)[1])
    timed = time_retrieval([named(plain())], [10, 20], repeats=1)
    assert is_png(analyze_retrieval_time(timed).write(tmp_path)[1])
    with pytest.raises(OpenVSEError, match=r"'gpoo' is no aggregator \(did you mean|'gpoo' is no aggregator"):
        time_poolings(["gpoo"])
