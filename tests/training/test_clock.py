"""The clock of an epoch; collapse, noticed once the loss has stayed at the value of a collapsed model."""

import pytest

from openvse.retrieval.training import RetrievalTask
from openvse.training import records as collapse
from openvse.training import trainer as module
from openvse.training.records import EQUAL_ANSWERS, EQUAL_EMBEDDINGS, CollapseDetector
from openvse.training.trainer import EpochClock
from openvse_papers.vqa.training import AnsweringTask
from tests.naming import names


def test_time_goes_on_from_the_session_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    clock = EpochClock(seconds=50.0, step=7)
    now = 104.0
    assert clock.tick() == 54.0
    assert clock.steps_per_s(15) == 2.0  # eight steps since the session began
    assert clock.checkpoint_is_due(4.0) and not clock.checkpoint_is_due(4.5)
    now = 106.0  # writing it took two seconds
    clock.checkpoint_written()
    now = 108.0
    assert clock.tick() == 58.0
    assert not clock.checkpoint_is_due(4.0)
    assert clock.steps_per_s(17) == 0.5

    assert EpochClock(0.0, 0).steps_per_s(1) == pytest.approx(1e9)  # it stands still


def test_collapse_needs_a_whole_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "EVERY", 1)
    monkeypatch.setattr(collapse, "WINDOW", 5)
    detector = CollapseDetector(EQUAL_EMBEDDINGS)
    assert [detector.update(51.0, 51.2) for _ in range(4)] == [None] * 4
    assert detector.update(20.0, 51.2) is None  # one step away from it begins the window anew
    warnings = [detector.update(51.9, 51.2) for _ in range(5)]
    assert warnings[:4] == [None] * 4
    assert names(warnings[4] or "", 51.2, 5, "ranking.miner: all")


def test_every_few_steps_alone_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "WINDOW", 3)
    detector = CollapseDetector(EQUAL_ANSWERS)
    assert [step for step in range(11) if detector.is_due(step)] == [0, 5, 10]
    warnings = [detector.update(51.2, 51.2) for _ in range(3)]
    assert warnings[:2] == [None] * 2
    assert names(warnings[2] or "", 15)


def test_tasks_name_what_collapse_means_for_them() -> None:
    assert (RetrievalTask.collapse, AnsweringTask.collapse) == (EQUAL_EMBEDDINGS, EQUAL_ANSWERS)
