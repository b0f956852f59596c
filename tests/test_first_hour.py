"""The trial of ``benchmarks/first_hour.py`` runs, and it can tell what is not as wanted."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("first_hour")


@pytest.fixture
def stage(trial: ModuleType) -> ModuleType:
    return importlib.import_module("_first_hour_stage")


@pytest.mark.slow
def test_points_that_need_no_model(trial: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert trial.main(["--only", "captions.csv", "mistyped recipe"]) == 0
    printed = capsys.readouterr().out
    assert "| Data: a lone captions.csv in the folder | `ok 2 items, 2 captions;" in printed
    assert "2 of 2 points are as wanted." in printed and str(ROOT) not in printed


def test_every_point_is_tried_by_one_function(trial: ModuleType) -> None:
    assert len(set(trial.CASES.values())) == len(trial.CASES) > 40


def test_what_is_not_as_wanted_fails(
    trial: ModuleType, stage: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_: object) -> None:
        raise RuntimeError("the disk | is gone")

    cases = {"fine": lambda _: stage.Outcome(True, "all well"), "broken": breaks}
    monkeypatch.setattr(trial, "CASES", cases)
    assert trial.main([]) == 1
    printed = capsys.readouterr().out
    assert "| fine | All well | yes |\n" in printed and "1 of 2 points" in printed
    assert "| broken | Cannot be tried: RuntimeError: the disk \\| is gone | **no** |\n" in printed
    assert trial.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fine"] == {"good": True, "seen": "All well"}
    assert trial.main(["--only", "fine"]) == 0


@pytest.mark.parametrize(
    ("code", "err", "good"),
    [
        (2, "openvse: error: the disk is full: make room\n", True),
        (0, "openvse: error: the disk is full: make room\n", False),
        (2, "openvse: error: the disk\nis full\n", False),
        (2, "Traceback (most recent call last):\nthe disk is full\n", False),
    ],
)
def test_the_judgement(stage: ModuleType, code: int, err: str, good: bool) -> None:
    answer = stage.Answer(code, "", err)
    assert answer.told("disk", "full", code=2).good is good
    assert answer.told("disk", "full", code=2, also=False, otherwise="but").good is False


def test_both_versions_stand_in_the_table(trial: ModuleType, stage: ModuleType) -> None:
    now, before = {"a": stage.Outcome(True, "works")}, {"a": stage.Outcome(False, "fails")}
    head, _, line, *_, counts = trial.as_table(now, before).splitlines()
    assert head == "| point | before | now | as wanted |" and line == "| a | fails | works | yes |"
    assert counts == "1 of 1 points are as wanted; before: 0."


def test_make_bench_runs_what_needs_no_arguments() -> None:
    needing = {
        path.name
        for path in BENCHMARKS.glob("[a-z]*.py")
        if re.search(r'required=True|add_argument\("\w+"(?!.*nargs)', path.read_text())
    }
    line = re.search(r"^BENCHMARKS = \$\(filter-out (.*?),", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert (
        {Path(name).name for name in line[1].split()}
        == needing
        == {
            "clip_order.py",
            "own_folder.py",
            "photo_clips.py",
            "start_study.py",
            "fair_rows.py",
            "caption_questions.py",
            "answers_study.py",
            "words_and_looks.py",
        }
    )
