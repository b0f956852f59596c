"""The trial of ``first_hour.py`` runs, and it can tell what is not as wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance import first_hour
from tests.acceptance.stage import Answer, Outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_points_that_need_no_model(capsys) -> None:
    assert first_hour.main(["--only", "captions.csv", "mistyped recipe"]) == 0
    printed = capsys.readouterr().out
    assert "| Data: a lone captions.csv in the folder | `ok 2 items, 2 captions;" in printed
    assert "2 of 2 points are as wanted." in printed and str(ROOT) not in printed


def test_every_point_is_tried_by_one_function() -> None:
    assert len(set(first_hour.CASES.values())) == len(first_hour.CASES) > 15


def test_what_is_not_as_wanted_fails(monkeypatch, capsys) -> None:
    def breaks(_: object) -> None:
        raise RuntimeError("the disk | is gone")

    cases = {"fine": lambda _: Outcome(True, "all well"), "broken": breaks}
    monkeypatch.setattr(first_hour, "CASES", cases)
    assert first_hour.main([]) == 1
    printed = capsys.readouterr().out
    assert "| fine | All well | yes |\n" in printed and "1 of 2 points" in printed
    assert "| broken | Cannot be tried: RuntimeError: the disk \\| is gone | **no** |\n" in printed
    assert first_hour.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fine"] == {"good": True, "seen": "All well"}
    assert first_hour.main(["--only", "fine"]) == 0


@pytest.mark.parametrize(
    ("code", "err", "good"),
    [
        (2, "openvse: error: the disk is full: make room\n", True),
        (0, "openvse: error: the disk is full: make room\n", False),
        (2, "openvse: error: the disk\nis full\n", False),
        (2, "Traceback (most recent call last):\nthe disk is full\n", False),
    ],
)
def test_the_judgement(code: int, err: str, good: bool) -> None:
    answer = Answer(code, "", err)
    assert answer.told("disk", "full", code=2).good is good
    assert answer.told("disk", "full", code=2, also=False, otherwise="but").good is False
