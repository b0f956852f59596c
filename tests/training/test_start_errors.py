"""What goes wrong with a start is one line that says what to do, and leaves nothing half-made."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.conversion.convert import convert
from openvse.errors import CheckpointError, ModelError, TrainingError
from openvse.tasks.load import load
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tests.conftest import draw_photo
from tests.dual_checkpoints import save_dual
from tests.naming import names, refusal
from tests.tiny import tiny_recipe, tiny_tree, write_tiny_corpus

pytestmark = pytest.mark.medium


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of the hub, which cannot be reached."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("OPENVSE_CACHE", str(tmp_path / "converted"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_corpus(tmp_path_factory.mktemp("tiny"))
    run_recipe(tiny_recipe(folder, phases=[{"epochs": 1}]), folder / "base")
    return folder


def from_base(corpus: Path) -> Any:
    tree = tiny_tree(corpus, phases=[{"epochs": 1}])
    return {key: tree[key] for key in ("name", "objective", "data", "training")} | {"start": str(corpus / "base")}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("openvse: error: ")
    return line


def test_without_the_hub(hub: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "mine"
    line = refused(run("train", "clip/folder_cpu", f"data.source={tmp_path}", "--out", out))
    assert names(line, "clip-b32", "openai/clip-vit-base-patch32")
    assert "hf download openai/clip-vit-base-patch32" in line
    assert not out.parent.exists() and not (tmp_path / "converted" / "models" / "clip-b32" / "model").exists()


def test_a_folder_without_captions_leaves_no_run(tmp_path: Path) -> None:
    convert(save_dual("clip", tmp_path / "clip"), tmp_path / "start")
    (tmp_path / "photos").mkdir()
    for number in range(3):
        draw_photo(number).save(tmp_path / "photos" / f"{number}.jpg")
    words = ("train", "clip/folder_cpu", f"start={tmp_path / 'start'}", f"data.source={tmp_path / 'photos'}")
    assert re.search(r"3.*metadata\.jsonl", refused(run(*words, "--out", tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_store_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The other side would be extracted into the run otherwise, which may take hours."""
    (photos := tmp_path / "photos").mkdir()
    for number in range(20):
        draw_photo(number).save(photos / f"{number}.jpg")
        (photos / f"{number}.txt").write_text(f"photo {number}")
    for side, other in (("features", "text_features"), ("text_features", "features")):
        words = f"data.source={photos}", f"data.{side}={tmp_path / 'none'}", f"data.{other}=auto"
        assert names(refused(run("train", "folder", *words, "--out", tmp_path / "run")), tmp_path / "none")
        assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_openvse_did_not_save(hub: Path, corpus: Path, tmp_path: Path) -> None:
    folder = save_dual("clip", tmp_path / "clip")
    line = refused(run("train", "--start", folder, f"data.source={corpus}", "--out", tmp_path / "run"))
    assert names(line, f"openvse convert {folder} MODEL")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert names(refusal(CheckpointError, convert, folder, tmp_path / "model"), "model_type", "'bert'")
    assert not (tmp_path / "model").exists()


def test_a_model_of_the_hub_that_openvse_did_not_save_is_not_downloaded(hub: Path) -> None:
    snapshot = hub / "models--someone--resnet" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (hub / "models--someone--resnet" / "refs").mkdir()
    (hub / "models--someone--resnet" / "refs" / "main").write_text("c" * 40)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    assert names(refusal(ModelError, load, "someone/resnet"), "'openvse convert someone/resnet MODEL'")


def test_weights_that_exceed_the_memory(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (corpus / "base" / "best" / "model.safetensors").stat().st_size
    recipe = parse_recipe(from_base(corpus))
    monkeypatch.setattr("openvse.training.environment.memory_of_machine", lambda: 3 * weights)
    refusal(TrainingError, run_recipe, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("openvse.training.environment.memory_of_machine", lambda: weights - 1)
    refusal(ModelError, run_recipe, recipe, tmp_path / "run")


def test_a_run_killed_while_it_copied_its_start_begins_again(corpus: Path, tmp_path: Path) -> None:
    start = tmp_path / "run" / "start"
    shutil.copytree(corpus / "base" / "best", start)
    (start / "model.safetensors").unlink()  # the file that is written last
    recipe = parse_recipe(from_base(corpus), copy=start)
    run_recipe(recipe, tmp_path / "run", resume=True)
    assert load(start).fingerprint == load(corpus / "base" / "best").fingerprint
