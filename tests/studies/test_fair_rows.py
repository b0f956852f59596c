"""``studies/fair_rows.py`` gives each method the same number of settings, and chooses on validation."""

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.errors import OpenVSEError
from openvse.files import locked
from openvse.tasks.recipes import load_recipe
from tests.failures import Failures
from tests.tiny import tiny_tree, write_tiny_corpus

STUDIES = Path(__file__).parents[2] / "studies"
PLANS = sorted((STUDIES / "plans").glob("*.yaml"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    return importlib.import_module("fair_rows")


@pytest.mark.medium
def test_every_setting_of_a_plan_is_a_recipe(script: ModuleType, tmp_path: Path) -> None:
    failures = Failures()
    for plan in PLANS:
        with failures.of(plan.stem):
            settings_are_recipes(script, yaml.safe_load(plan.read_text()), tmp_path)
    assert not failures, failures


def settings_are_recipes(script: ModuleType, tree: dict, tmp_path: Path) -> None:
    for method in tree["methods"]:
        resolved = []
        for setting in script.settings_of(method, tree):
            recipe = tmp_path / "recipe.yaml"
            recipe.write_text(yaml.safe_dump(setting.recipe))
            resolved.append(load_recipe(recipe).model_dump_json())
        assert len({*resolved}) == len(resolved), f"{method}: two settings are the same"


@pytest.mark.parametrize("words", ["bigru", "minilm"])
def test_every_method_of_a_comparison_has_eight_settings(script: ModuleType, words: str) -> None:
    plan = yaml.safe_load((STUDIES / "plans" / f"crops_{words}.yaml").read_text())
    assert {len([*script.settings_of(method, plan)]) for method in plan["methods"]} == {8}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    tiny = tiny_tree(write_tiny_corpus(tmp_path / "data"), phases=[{"epochs": 2}])
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    rates = [{"optimizer": {"learning_rate": rate}} for rate in (1e-7, 5e-3)]
    method = {"base": str(tmp_path / "tiny"), "settings": [rates]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"shared": {"training": {"threads": 1}}, "methods": {"tiny": method}}))
    return path


@pytest.mark.medium
def test_the_best_setting_gets_the_other_seeds(
    script: ModuleType, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []

    def train(*words: str) -> str:
        trained.append(Path(words[-1]).name)
        result = CliRunner().invoke(app, [*words, "-q"])
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.setattr(script, "openvse", train)
    out = tmp_path / "runs"

    def run(*words: str) -> None:
        script.main([str(plan), "--out", str(out), "--seeds", "2", *words])

    (out / "tiny-0-s0").mkdir(parents=True)  # of a run that was stopped before its first epoch ended
    turn = out / "tiny-1-s0.turn"
    turn.mkdir()
    with locked(turn, "the turn", OpenVSEError):  # as another process would
        run()
    assert trained.pop() == "tiny-0-s0" and trained == [], "what another process trains is left to it"
    run("--chosen")
    assert capsys.readouterr().err == "tiny: not all of its settings are trained\n"
    shutil.rmtree(out / "tiny-0-s0")
    run()
    assert trained == ["tiny-0-s0", "tiny-1-s0", "tiny-1-s1"]
    run()
    assert len(trained) == 3, "finished runs are not trained again"

    capsys.readouterr()
    run("--chosen")
    assert capsys.readouterr().out == f"tiny={out / 'tiny-1-s0'},{out / 'tiny-1-s1'}\n"
    run("--keep", str(tmp_path / "runs.jsonl"))
    lines = [*map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())]
    assert [line["run"] for line in lines] == trained
    assert [len(line["validation_rsum"]) for line in lines] == [2, 2, 2]
    assert lines[0]["recipe"]["optimizer"]["learning_rate"] == 1e-7
    assert str(tmp_path) not in (tmp_path / "runs.jsonl").read_text()


def test_models_that_answer_are_chosen_by_their_accuracy(script: ModuleType, tmp_path: Path) -> None:
    records = [
        {"kind": "validation", "epoch": epoch, "global_step": epoch, "accuracy": accuracy, "loss": 9.0}
        for epoch, accuracy in ((1, 20.0), (2, 25.0))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert script.validations(tmp_path) == {1: 20.0, 2: 25.0}
