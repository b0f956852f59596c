"""``openvse compare`` on the shared run, and on copies of it with other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from album import Page

import openvse
from openvse.tasks.runs import find_run, parse_rows
from tests.naming import names
from tests.tiny_questions import write_tiny_questions

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def others(trained: Path, tmp_path_factory) -> Path:
    """Write runs that differ from the shared one: two seeds of its recipe, and one of another recipe."""
    root = tmp_path_factory.mktemp("others")
    tree = yaml.safe_load((trained / "run" / "recipe.yaml").read_text())
    for name, seed, width in (("mine_s1", 1, 16), ("mine_s2", 2, 16), ("noisy", 1, 17)):
        model = openvse.load(trained / "run" / "best")
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
        model.save(root / name / "best")
        (root / name / "recipe.yaml").write_text(yaml.safe_dump({**tree, "seed": seed, "embed_dim": width}))
    return root


def test_rows_intervals_and_seeds(result_of, works, trained: Path, others: Path) -> None:
    words = [others / "noisy", others / "mine_s1", others / "mine_s2", "--on", trained / "album"]
    result = works("compare", *words, "--resamples", 200, "--split", "all")
    assert names(result.stdout, "A  noisy\nB  mine\n", "album", 20, 24, "±", "B - A")
    assert max(map(len, result.stdout.splitlines())) <= 80
    values = result_of("compare", *words, "--resamples", 200, "--split", "all")
    assert [(row["name"], len(row["runs"])) for row in values["rows"]] == [("noisy", 1), ("mine", 2)]
    assert values["rows"][0]["spread"] == {} and values["rows"][1]["spread"]["rsum"] >= 0
    row = values["rows"][1]
    assert row["mean"]["rsum"] == pytest.approx(sum(run["metrics"]["rsum"] for run in row["runs"]) / 2)
    (contrast,) = values["contrasts"]
    found = contrast["differences"]["rsum"]
    assert found["change"] == pytest.approx(row["mean"]["rsum"] - values["rows"][0]["mean"]["rsum"])
    assert found["interval"][0] <= found["change"] <= found["interval"][1]
    assert found["shown"] == (found["interval"][0] > 0 or found["interval"][1] < 0)
    signs = contrast["signs"]["t2i"]
    assert signs["better"] + signs["worse"] + signs["equal"] == 24


def test_one_table_of_the_rows_in_markdown_and_latex(invoke, result_of, trained: Path, others: Path) -> None:
    words = (trained / "run", f"a_b={others / 'mine_s1'},{others / 'mine_s2'}", "--on", trained / "album")
    words = ("compare", *words, "--split", "all", "--resamples", 100, "-q")
    values = result_of(*words)
    first, second = values["rows"]
    found = values["contrasts"][0]["differences"]["rsum"]
    low, high = found["interval"]
    header, _, run, seeds, *_ = invoke(*words, "--format", "markdown").stdout.splitlines()
    told = json.loads((trained / "run" / "best" / "config.json").read_text())["provenance"]["validation"]
    assert header.startswith("|  | seeds | validation RSUM | i2t R@1 |")
    assert header.endswith("| RSUM | RSUM, difference | minutes |")
    assert run.startswith(f"| run | 1 | {told['metrics']['rsum']:.1f} | {first['mean']['i2t_r1']:.1f} |")
    assert run.endswith(f"| {first['mean']['rsum']:.1f} |  | < 1 |")
    # The copies have no records, so that nothing is known of their training.
    mean, spread = second["mean"], second["spread"]
    assert seeds.startswith(f"| a_b | 2 |  | {mean['i2t_r1']:.1f} ± {spread['i2t_r1']:.1f} |")
    difference = f"{found['change']:+.1f} ({low:+.1f} to {high:+.1f})"
    assert seeds.endswith(f"| {mean['rsum']:.1f} ± {spread['rsum']:.1f} | {difference} |  |")
    latex = invoke(*words, "--format", "latex").stdout
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3 and len({line.count("&") for line in rows}) == 1
    assert r"a\_b & 2 & " in latex and rf"$\pm$ {spread['rsum']:.1f}" in latex
    assert latex.startswith("% on album: 20 images, 24 texts\n")


def test_the_page_shows_wins_and_losses_and_needs_no_network(
    invoke, trained: Path, others: Path, tmp_path: Path
) -> None:
    words = [trained / "run", others / "noisy", "--on", trained / "album", "--split", "all", "--examples", 3]
    out = tmp_path / "page.html"
    assert invoke("compare", *words, "--html", out, "--resamples", 100).exit_code == 0
    page = Page(out)
    page.check_needs_nothing()
    # ``noisy`` began from the same data, which a run remembers.
    assert page.source.count('class="leak"') == 2


def test_a_model_that_was_trained_on_the_test_images_is_caught(invoke, trained: Path, tmp_path: Path) -> None:
    entries = [json.loads(line) for line in (trained / "album" / "metadata.jsonl").read_text().splitlines()]
    swapped = {"train": "test", "test": "train", "validation": "validation"}
    shutil.copytree(trained / "album", tmp_path / "swapped")
    lines = [json.dumps({**entry, "split": swapped[entry["split"]]}) for entry in entries]
    (tmp_path / "swapped" / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    model = trained / "run" / "best"
    seen = invoke("evaluate", model, "--on", tmp_path / "swapped", "--json")
    report = json.loads(seen.stdout)["result"]["report"]
    expected = "leakage: the model was trained on 12 of the 12 images that could be checked"
    assert report["problems"][0].startswith(expected)
    assert expected in seen.stderr.replace("\n", " ")
    clean = json.loads(invoke("evaluate", model, "--on", trained / "album", "--json").stdout)
    assert clean["result"]["report"]["problems"] == clean["warnings"] == []


def test_rows_that_cannot_be_get_one_line(refused, trained: Path, others: Path) -> None:
    run, noisy, on = trained / "run", others / "noisy", ("--on", trained / "album")
    stores = ("--features", run / "features")
    for rows, named in (
        ((run, run / "best"), [run.name]),
        ((others / "mine_s1", others / "mine_s2"), ["mine", 2]),
        ((run, "mine="), ["mine="]),
        ((run, noisy, *stores, *stores, *stores), ["--features", 3, 2]),
        ((run, f"{run}+{noisy}", *stores, *stores), ["--features", 2, 3]),
        ((run, f"{run}+"), ["RUN+RUN", "RUN~MODEL"]),
        ((run, f"{run}~{noisy}~{run}"), ["RUN+RUN"]),
        ((run, noisy, "--json", "--format", "latex"), ["--json", "--format latex"]),
    ):
        assert names(refused("compare", *rows, *on), *named), rows


def test_rows_are_named_and_keep_their_order(trained: Path, others: Path) -> None:
    one, two, noisy = (str(others / name) for name in ("mine_s1", "mine_s2", "noisy"))
    rows = parse_rows([one, f"odd={noisy}", two])
    assert {name: [each.source for each in group] for name, group in rows.items()} == {
        "mine": [one, two],
        "odd": [noisy],
    }
    assert [*parse_rows([one, two], apart=True)] == ["mine_s1", "mine_s2"]
    assert find_run(str(trained / "run" / "best")).name == "run"
    assert find_run("someone/model").name == "someone/model"


def test_an_unfinished_run_is_told(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    assert find_run(str(folder)).unfinished() == ""
    log = folder / "metrics.jsonl"
    lines = [line for line in log.read_text().splitlines() if '"epoch": 2' not in line]
    log.write_text("\n".join([*lines, '{"kind": "validation", "epo']))
    assert names(find_run(str(folder)).unfinished(), folder, 1, 2)


def test_ensembles_and_reranking_have_the_figures_of_evaluate(result_of, trained: Path, others: Path) -> None:
    run, noisy, seed = trained / "run", others / "noisy", others / "mine_s1"
    on = ("--on", trained / "album", "--split", "all")
    words = (run, f"{run}+{noisy}", f"both={run}+{noisy}~{seed}", *on, "--rerank", "top=5")
    rows = result_of("compare", *words, "--resamples", 100)["rows"]
    assert [row["name"] for row in rows] == ["run", "run + noisy", "both"]
    best = [run / "best", noisy / "best"]
    mean, again = (
        result_of("evaluate", *best, *on, *rerank)["report"] for rerank in ((), ("--rerank", f"{seed / 'best'},top=5"))
    )
    assert [row["runs"][0]["metrics"] for row in rows[1:]] == [mean["metrics"], again["metrics"]]
    assert rows[2]["runs"][0]["model"] == again["model"]


def test_names_of_several_models(trained: Path, others: Path) -> None:
    run, noisy = trained / "run", others / "noisy"
    (row,) = parse_rows([f"{run}+{noisy}~{run}"]).values()
    assert row[0].name == "run + noisy ~ run"
    assert row[0].models == tuple(str(path / "best") for path in (run, noisy, run))


def test_questions_are_no_captions(trained: Path, others: Path, tmp_path: Path, refused) -> None:
    quiz, run = write_tiny_questions(tmp_path / "quiz"), trained / "run"
    for number in range(26):
        (quiz / f"{number:03d}.jpg").write_bytes(b"not opened")
    for words in (
        ("evaluate", run / "best", "--on", quiz),
        ("evaluate", run / "best", "--on", quiz, "--split", "all", "--calibrate"),
        ("compare", run, others / "noisy", "--on", quiz),
        ("analyze", "hits", run, "--on", quiz, "--out", tmp_path / "hits"),
        ("train", "vse_infinity/folder_cpu", f"data.source={quiz}", "--out", tmp_path / "new"),
    ):
        assert names(refused(*words), "questions", "captions")
