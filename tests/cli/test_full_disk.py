"""A full disk ends every command in one line, and leaves what was there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from album import digest

from openvse.errors import DiskError
from openvse.tasks.load import load
from openvse.training.optimizer import Progress, save_checkpoint
from openvse.training.records import MetricsLog
from tests.full_disk import full_disk
from tests.naming import names

LARGE = 1_000_000  # less than a checkpoint or a model take
FULL = 400


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


@pytest.fixture
def refused(invoke) -> Callable[..., str]:
    """Return ``refused("train", ...)``: it must end with code 2, and with one line after its progress."""

    def run(*words: object) -> str:
        result = invoke(*words)
        assert result.exit_code == 2, result.output
        before, mark, line = result.stderr.partition("openvse: error: ")
        assert mark and line.endswith("\n") and line.count("\n") == 1 and "Traceback" not in before
        return line

    return run


@pytest.mark.medium
def test_a_first_run(recipe: Path, tmp_path: Path, refused) -> None:
    with full_disk(LARGE):
        line = refused("train", recipe, "--out", tmp_path / "run")
    assert names(line, tmp_path / "run" / "last.pt", "File too large")
    assert not (tmp_path / "run" / "best").exists() and not list((tmp_path / "run").glob("*.partial"))


@pytest.mark.medium
def test_a_run_that_replaces_another(trained: Path, recipe: Path, tmp_path: Path, refused) -> None:
    run = copy(trained / "run", tmp_path / "run")
    before = digest(run)
    with full_disk(LARGE):
        refused("train", recipe, "--out", run, "--overwrite")
    assert digest(run) == before


@pytest.mark.medium
def test_a_model_over_another_model(trained: Path, tmp_path: Path) -> None:
    folder = copy(trained / "run" / "best", tmp_path / "best")
    before = digest(folder)
    model = load(folder)
    model.provenance["recipe"] = "another"
    with full_disk(LARGE), pytest.raises(DiskError):
        model.save(folder)
    assert digest(folder) == before
    with full_disk(LARGE), pytest.raises(DiskError):
        model.save(tmp_path / "new" / "best")
    assert not (tmp_path / "new").exists()
    model.save(folder)
    assert digest(folder).keys() == before.keys() and digest(folder) != before


def test_a_checkpoint_over_another(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, Progress(), {"model": {}})
    before = path.read_bytes()
    with full_disk(FULL), pytest.raises(DiskError, match="last.pt"):
        save_checkpoint(path, Progress(epoch=1), {"model": {}})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_log_of_a_run(tmp_path: Path, capfd) -> None:
    log = MetricsLog(tmp_path, 0)
    with full_disk(FULL), pytest.raises(DiskError, match=r"metrics.jsonl|tensorboard"):
        for step in range(1000):
            log.write("train", 1, step, {"loss": 1.0})
    with suppress(DiskError):
        log.close()
    assert capfd.readouterr().err == ""


@pytest.mark.medium
def test_a_contact_sheet(trained: Path, tmp_path: Path, refused) -> None:
    sheet = tmp_path / "hits.html"
    words = ("search", trained / "run" / "best", trained / "index", "red", "--html")
    with full_disk(FULL):
        for path in (sheet, tmp_path / "new" / "hits.html"):
            assert names(refused(*words, path), path, "File too large")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.medium
def test_a_report(trained: Path, album: Path, tmp_path: Path, refused) -> None:
    with full_disk(FULL):
        line = refused("evaluate", trained / "run" / "best", "--on", album, "--out", tmp_path / "report")
    assert "report.md" in line
    assert not (tmp_path / "report").exists()


@pytest.mark.medium
def test_extracted_features(album: Path, tmp_path: Path, refused) -> None:
    words = ("extract", "efficientnet_lite0", album, tmp_path / "store", "pretrained=false", "image_size=64")
    with full_disk(FULL):
        line = refused(*words)
    assert names(line, tmp_path / "store", "File too large")


def test_output_that_nobody_takes(invoke, monkeypatch) -> None:
    def refuse(within: str = "") -> list[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openvse.specs.load.list_recipes", refuse)
    result = invoke("list", "recipes")
    assert result.exit_code == 2
    assert names(result.stderr, "openvse: error: ", "No space left on device")


@pytest.mark.medium
@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_full_device_takes_no_version_and_no_help(option: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "openvse", option]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert names(done.stderr, "openvse: error: ", "No space left on device")
