"""Sweeps over recipes: what the words mean, resumable trainings, and figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from openvse.errors import OpenVSEError
from openvse.tasks.recipes import load_recipe
from openvse_papers.analysis.sweep import (
    RESULT,
    Axis,
    Sweep,
    Swept,
    analyze_sweep,
    check_metrics,
    parse_axes,
    parse_seeds,
    run_sweep,
)
from tests.cli.album import write_album, write_recipe
from tests.naming import names, refusal
from tests.papers.analysis.small import is_png
from tests.tiny import Recorder, tiny_tree, write_tiny_corpus

VIEWS = "image.aggregator.num_views"
ABLATION = (
    "Tri:objective.ranking.weight=1,objective.bound.weight=0,image.aggregator.num_views=1",
    "Max:objective.ranking.weight=1,objective.bound.weight=0",
    "Avg:objective.ranking.weight=0,objective.bound.weight=1,objective.bound.name=multi_view_average",
    "full:",
)
LAMBDAS = tuple(f"lambda={w}:objective.ranking.weight={w},objective.bound.weight={1 - w:g}" for w in (0.5, 1.0))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_corpus(tmp_path_factory.mktemp("tiny") / "data")
    tree = tiny_tree(folder, phases=[{"epochs": 1}])
    tree["image"]["aggregator"] = {"name": "multi_view", "num_views": 3}
    tree["objective"]["bound"] = {"name": "multi_view_bound", "miner": "hardest", "criterion": "hinge"}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def sweep_of(*words: str, settings: tuple[str, ...] = (), seeds: tuple[int, ...] = (0,)) -> Sweep:
    return Sweep("recipe", *parse_axes(words, settings), seeds, Path("runs"))


@pytest.mark.slow
def test_a_sweep_is_trained_once(recipe: Path, tmp_path: Path) -> None:
    shared, axes = parse_axes(["training.batch_size=8", f"{VIEWS}=1,2"], ())
    sweep = Sweep(str(recipe), shared, axes, (0, 1), tmp_path / "runs")
    told: list[tuple[str, int, int]] = []
    watcher = Recorder()
    found = run_sweep(sweep, watcher, lambda *state: told.append(state))
    begun = [line for line in watcher.notes if line.startswith("training ")]
    assert begun == [
        f"training {number} of 4: {VIEWS}-{views}, seed {seed}"
        for number, (views, seed) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)], 1)
    ]
    assert watcher.notes[1].startswith("vocabulary: ")  # told once, and not again by each training
    assert len({*watcher.notes}) == len(watcher.notes) and len({*watcher.warnings}) == len(watcher.warnings)
    assert told == [("trainings", done, 4) for done in (1, 2, 3, 4)]
    assert [each.setting.at for each in found] == [("1",), ("2",)]
    assert found[0].mean("view_cosine") is None and -1 <= (found[1].mean("view_cosine") or 2) <= 1
    kept = json.loads((tmp_path / "runs" / f"{VIEWS}-2_s1" / RESULT).read_text())
    assert kept["metrics"] == found[1].metrics[1]
    assert kept["recipe"]["image"]["aggregator"] == {"name": "multi_view", "num_views": 2}
    # A run that is stopped before it is measured is neither lost nor trained again.
    (tmp_path / "runs" / f"{VIEWS}-2_s1" / RESULT).unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("model.safetensors")}
    assert run_sweep(sweep) == found
    assert {path: path.stat().st_mtime_ns for path in times} == times
    table = recipe.parent / "tiny.csv"
    lines = table.read_text()
    try:
        table.write_text(lines.replace("green", "grass", 1))
        assert names(refusal(OpenVSEError, run_sweep, sweep), "_s0", "train")
    finally:
        table.write_text(lines)
    with pytest.raises(OpenVSEError, match=f"{VIEWS}-1_s0.*--out"):
        run_sweep(replace(sweep, overrides=("training.batch_size=16",)))
    with pytest.raises(OpenVSEError, match="num_view"):  # before anything is trained
        run_sweep(replace(sweep, axes=(Axis("x", ("1",), (("image.aggregator.num_view=1",),)),)))


@pytest.mark.slow
def test_a_sweep_goes_on_where_its_data_and_its_folder_are_now(tmp_path: Path) -> None:
    album = write_album(tmp_path / "album")
    recipe = write_recipe(tmp_path / "tiny.yaml", album)
    shared, axes = parse_axes(["training.phases=[{epochs: 1}]", "embed_dim=8,16"], ())
    sweep = Sweep(str(recipe), shared, axes, (0,), tmp_path / "runs")
    found = run_sweep(sweep)
    stored = [path.name for path in (sweep.folder / "stores").iterdir()]
    sweep.folder.rename(tmp_path / "elsewhere")
    album.rename(tmp_path / "moved")
    again = replace(sweep, overrides=(*shared, f"data.source={tmp_path / 'moved'}"), folder=tmp_path / "elsewhere")
    watcher = Recorder()
    assert run_sweep(again, watcher) == found and not watcher.epochs
    assert [path.name for path in (again.folder / "stores").iterdir()] == stored
    lines = (tmp_path / "moved" / "metadata.jsonl").read_text()
    (tmp_path / "moved" / "metadata.jsonl").write_text(lines.replace("sky", "heaven", 1))
    assert names(refusal(OpenVSEError, run_sweep, again), "--out")


@pytest.mark.slow
def test_other_encoders_read_other_features(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_album(tmp_path / "album"))
    shared, axes = parse_axes(["training.phases=[{epochs: 1}]", "image.encoder.image_size=32,64"], ())
    found = run_sweep(Sweep(str(recipe), shared, axes, (0,), tmp_path / "runs"))
    assert len(found) == 2 and len([*(tmp_path / "runs" / "stores").iterdir()]) == 2


def test_words_become_axes() -> None:
    shared, axes = parse_axes(["e=1", "a.b=1, 2", "c=[1,2],{name: x, k: 3},'1,2'", "d='1,2'"], ())
    assert shared == ("e=1", "d='1,2'")
    assert axes[0] == Axis("a.b", ("1", "2"), (("a.b=1",), ("a.b=2",)))
    assert axes[0].numbers == [1, 2] and axes[1].numbers is None
    assert axes[1].values == ("[1,2]", "{name: x, k: 3}", "'1,2'")
    settings = sweep_of("a.b=1,2", "c=x,y").settings()
    assert [each.at for each in settings] == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert settings[1].overrides == ("a.b=1", "c=y") and settings[1].name == "a.b-1_c-y"
    assert [each.at for each in sweep_of("e=1").settings()] == [("recipe",)]
    assert parse_seeds("0,2") == (0, 2)
    for word in ("a=1,1", "a=1,,2", "a=1,"):
        assert names(refusal(OpenVSEError, parse_axes, [word], ()), "a=")
    assert names(refusal(OpenVSEError, parse_axes, ["seed=1"], ()), "--seeds")
    for setting in ("x", ":a=1", "x=1", "x=:a=1", "=x:a=1"):
        assert names(refusal(OpenVSEError, parse_axes, [], [setting]), "--setting")
    for text in ("0.5", "-1", "1,x", "1,1", ""):
        assert names(refusal(OpenVSEError, parse_seeds, text), "--seeds")
    assert names(refusal(OpenVSEError, sweep_of("a=[1],{1}").settings), "--setting")
    assert names(refusal(OpenVSEError, check_metrics, ["rsun"]), "rsun")
    assert check_metrics([]) == ("rsum",)


def test_settings_change_several_keys(recipe: Path, tmp_path: Path) -> None:
    (axis,) = sweep_of(settings=LAMBDAS).axes
    assert (axis.label, axis.values, axis.numbers) == ("lambda", ("0.5", "1.0"), [0.5, 1.0])
    sweep = sweep_of("embed_dim=8", settings=ABLATION)
    rows = {each.at[0]: load_recipe(str(recipe), each.overrides).to_dict() for each in sweep.settings()}
    assert [*rows] == ["Tri", "Max", "Avg", "full"]
    assert rows["Tri"]["image"]["aggregator"]["num_views"] == 1
    assert rows["Avg"]["objective"]["bound"]["name"] == "multi_view_average"
    assert [row["objective"]["bound"].get("weight", 1) for row in rows.values()] == [0, 0, 1, 1]
    for key, good, bad in (
        ("image.encoder.projection", "linear", "linea"),
        ("image.aggregator", "mean", "gpoo"),
        ("image.aggregator.num_views", "1", "0"),
        ("text.encoder", "bigru", "bigruu"),
        ("text.aggregator", "mean", "tokens"),
        ("similarity", "set_max", "set_maxx"),
        ("objective.bound.miner", "all", "hardst"),
        ("objective.bound.criterion", "hinge", "hing"),
        ("training.phases", "[{epochs: 1}]", "[{epochs: 1, objective: {ranking.miner: al}}]"),
        ("data.source", str(recipe.parent), str(tmp_path / "missing")),
    ):  # refused before the first setting is trained, or anything is written
        watcher, swept = (
            Recorder(),
            Sweep(str(recipe), *parse_axes([f"{key}={good},{bad}"], ()), (0,), tmp_path / "runs"),
        )
        refused = refusal(OpenVSEError, run_sweep, swept, watcher)
        assert not watcher.notes and not swept.folder.exists(), (key, watcher.notes)
        assert any(each in refused for each in (key.split(".")[-1], bad, "ranking.miner")), key


def test_settings_with_labels_make_an_axis_each() -> None:
    rows, ks = sweep_of(settings=("full:", "plain:a=1", "K=1:k=1", "K=2:k=2,j=2")).axes
    assert (rows.label, rows.values, rows.overrides) == ("setting", ("full", "plain"), ((), ("a=1",)))
    assert (ks.label, ks.numbers, ks.overrides) == ("K", [1, 2], (("k=1",), ("k=2", "j=2")))
    for twice in (("K=1:k=1", "K=1:k=2"), ("full:", "full:a=1")):
        refusal(OpenVSEError, parse_axes, [], twice)


def swept(sweep: Sweep, *rsums: float, views: float | None = None) -> list[Swept]:
    found = []
    for setting, rsum in zip(sweep.settings(), rsums, strict=True):
        both = []
        for number in range(len(sweep.seeds)):
            metrics = {f"{side}_r{k}": rsum / 6 for side in ("i2t", "t2i") for k in (1, 5, 10)}
            metrics |= {"rsum": rsum + 2 * number, "t2i_medr": 500.0 - rsum}
            both.append(metrics if views is None else metrics | {"view_cosine": views})
        found.append(Swept(setting, tuple(both)))
    return found


@pytest.mark.medium
def test_sweeps_are_drawn(tmp_path: Path) -> None:
    k = sweep_of("image.aggregator.k=1,2", "text.aggregator.k=1,5,9", seeds=(0, 1))
    grid = analyze_sweep(k, swept(k, *range(100, 106)), ("rsum",))
    assert grid.tables[""].header[:2] == ("image.aggregator.k", "text.aggregator.k")
    assert grid.tables[""].rows[1][:2] == (1, 5) and grid.tables[""].rows[0][8] == 101
    assert grid.tables[""].rows[0][9] == pytest.approx(2**0.5)
    assert [row[-1] for row in grid.summary.rows] == [""] * 5 + ["best"]
    single = replace(k, seeds=(0,))  # of one seed nobody knows the spread
    assert {row[9] for row in analyze_sweep(single, swept(single, *range(6)), ("rsum",)).tables[""].rows} == {""}
    weights = sweep_of(settings=LAMBDAS, seeds=(0, 1))
    line = analyze_sweep(weights, swept(weights, 10.0, 9.0, views=0.9995), ("t2i_medr", "view_cosine"))
    assert [row[-1] for row in line.summary.rows] == ["best", ""]  # of ranks, less is better
    points = sweep_of(settings=ABLATION)
    bars = analyze_sweep(points, swept(points, 10.0, 11.0, 12.0, 13.0), ("rsum",))
    for name, found in (("grid", grid), ("line", line), ("points", bars)):
        assert all(is_png(path) for path in found.write(tmp_path / name) if path.suffix == ".png")
    drawn = (tmp_path / "line" / "sweep.svg").read_text()
    assert "t2i MedR on validation" in drawn and "mean and standard deviation of 2 seeds" in drawn
    assert "cosine of two views" in (tmp_path / "line" / "sweep_view_cosine.svg").read_text()
    assert "mean of 2 seeds" in (tmp_path / "grid" / "sweep.svg").read_text()
    assert "full" in (tmp_path / "points" / "sweep.svg").read_text()


@pytest.mark.medium
def test_views_that_are_the_same_look_so() -> None:
    views = sweep_of(f"{VIEWS}=1,2,3")
    found = swept(views, 100.0, 100.0, 100.0, views=0.9995)
    found[0] = swept(views, 1.0, 1.0, 1.0)[0]  # one view has no cosine
    (axes,) = analyze_sweep(views, found, ("view_cosine",)).figures[""]().axes
    assert axes.get_ylim() == (0, 1.05) and axes.get_xticks().tolist() == [2, 3]
    with pytest.raises(OpenVSEError, match="view_cosine"):
        analyze_sweep(views, swept(views, 1.0, 1.0, 1.0), ("view_cosine",))
