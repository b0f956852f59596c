"""Runs that were killed, lost a file, or are started again: nothing is lost, repeated or replaced unasked."""

import os
import signal
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from openvse.errors import DataError, OpenVSEError, TrainingError
from openvse.tasks.run import run_recipe
from openvse.training.records import EpochReport, Silent, StepReport
from tests.forking import forked
from tests.naming import names, refusal
from tests.tiny import read_metrics, tiny_recipe, tiny_tree

ONE_EPOCH = [{"epochs": 1}]


class KillAfterValidation(Silent):
    """Kills its process after the second epoch."""

    def epoch(self, report: EpochReport) -> None:
        if report.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one epoch; copy it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_recipe(tiny_recipe(corpus, phases=ONE_EPOCH), folder)
    return folder


def copied(run: Path, target: Path) -> Path:
    subprocess.run(["cp", "-r", run, target], check=True)
    return target


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.medium
def test_a_kill_after_validation_repeats_no_line(corpus: Path, tmp_path: Path) -> None:
    """The last checkpoint is of the epoch's last step: its validation is on disk, and is done again."""
    recipe = tiny_recipe(corpus, checkpoint_every_s=1e-6, threads=1)
    killed = tmp_path / "killed"
    process = forked(partial(run_recipe, recipe, killed, watcher=KillAfterValidation()))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert read_metrics(killed)[-1]["kind"] == "curves"
    run_recipe(recipe, killed, resume=True)
    lines = Counter((record["kind"], record["global_step"]) for record in read_metrics(killed))
    assert set(lines.values()) == {1}
    run_recipe(recipe, tmp_path / "whole")
    assert read_metrics(killed) == read_metrics(tmp_path / "whole")


class StopsAt(Silent):
    """Is stopped by Ctrl-C after a step."""

    def __init__(self, global_step: int) -> None:
        self.at = global_step

    def step(self, report: StepReport) -> None:
        """Stop at the step."""
        if report.global_step == self.at:
            raise KeyboardInterrupt


@pytest.mark.medium
def test_what_is_recorded_once_a_run_or_phase_is_not_repeated(corpus: Path, tmp_path: Path) -> None:
    phases = [{"epochs": 1}, {"epochs": 1, "frozen": ["text.encoder.words"]}]
    recipe = tiny_recipe(corpus, phases=phases, log_every=1, threads=1)
    run_recipe(recipe, tmp_path / "whole")
    whole = read_metrics(tmp_path / "whole")
    (begin,) = [record["global_step"] for record in whole if record["kind"] == "phase"]
    assert [record["kind"] for record in whole].count("vocabulary") == 1
    for step in (1, begin, begin + 1):
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe, tmp_path / "stopped", watcher=StopsAt(step), resume=True)
    run_recipe(recipe, tmp_path / "stopped", resume=True)
    assert read_metrics(tmp_path / "stopped") == whole


@pytest.mark.medium
def test_a_best_model_without_checkpoint_is_not_replaced(corpus: Path, run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    (folder / "last.pt").unlink()
    before = contents(folder)
    recipe = tiny_recipe(corpus, phases=ONE_EPOCH)
    for resume in (False, True):
        assert names(refusal(TrainingError, run_recipe, recipe, folder, resume=resume), "last.pt", "--overwrite")
    assert contents(folder) == before


@pytest.mark.medium
def test_overwrite_begins_anew_and_leaves_nothing_of_the_old_run(corpus: Path, run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    before = contents(folder)
    (folder / "best" / "stale.txt").write_text("of the old run")
    recipe = tiny_recipe(corpus, phases=[{"epochs": 1}], log_every=2)
    assert run_recipe(recipe, folder, overwrite=True).progress.epoch == 1
    assert contents(folder)["best/model.safetensors"] == before["best/model.safetensors"]
    assert not (folder / "best" / "stale.txt").exists()
    assert len(list((folder / "tensorboard").iterdir())) == 1
    refusal(TrainingError, run_recipe, recipe, folder, overwrite=True, resume=True)


@pytest.mark.medium
def test_what_cannot_begin_replaces_nothing(corpus: Path, run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    before = contents(folder)
    tree = tiny_tree(corpus, phases=ONE_EPOCH)
    tree["data"]["source"] = str(tmp_path / "gone.csv")
    with pytest.raises(DataError, match="gone"):
        run_recipe(type(tiny_recipe(corpus)).model_validate(tree), folder, overwrite=True)
    assert contents(folder) == before


@pytest.mark.medium
def test_resume_begins_where_there_is_no_run(corpus: Path, run: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(corpus, phases=ONE_EPOCH)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.yaml").write_text("name: left by one that could not begin\n")
    for folder in (tmp_path / "new", tmp_path / "other"):
        run_recipe(recipe, folder, resume=True)
        assert contents(folder)["best/model.safetensors"] == contents(run)["best/model.safetensors"]
        assert contents(folder)["recipe.yaml"] == contents(run)["recipe.yaml"]


def test_a_run_that_cannot_begin_leaves_no_folder(corpus: Path, tmp_path: Path) -> None:
    for section, change in (("data", {"source": "mistyped.csv"}), ("data", {"features": "mistyped"})):
        tree = tiny_tree(corpus)
        tree[section] |= change
        with pytest.raises(OpenVSEError):
            run_recipe(type(tiny_recipe(corpus)).model_validate(tree), tmp_path / "runs" / "mine")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_the_first_checkpoint_comes_before_anything_else(corpus: Path, tmp_path: Path) -> None:
    """So a run that is killed while it writes its first best/ can be resumed."""
    tree = tiny_tree(corpus, phases=ONE_EPOCH)
    tree["optimizer"]["learning_rate"] = 1e30
    tree["training"]["clip_norm"] = None
    refusal(TrainingError, lambda: run_recipe(type(tiny_recipe(corpus)).model_validate(tree), tmp_path / "run"))
    assert (tmp_path / "run" / "last.pt").exists()
