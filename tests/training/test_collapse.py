"""Collapse is noticed once the loss has stayed at the value of a collapsed model."""

from __future__ import annotations

import pytest

from openvse.retrieval.training import RetrievalTask
from openvse.training import collapse
from openvse.training.collapse import EQUAL_ANSWERS, EQUAL_EMBEDDINGS, CollapseDetector
from openvse_papers.vqa.training import AnsweringTask


def test_collapse_needs_a_whole_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "EVERY", 1)
    monkeypatch.setattr(collapse, "WINDOW", 5)
    detector = CollapseDetector(EQUAL_EMBEDDINGS)
    assert [detector.update(51.0, 51.2) for _ in range(4)] == [None] * 4
    assert detector.update(20.0, 51.2) is None  # one step away from it begins the window anew
    warnings = [detector.update(51.9, 51.2) for _ in range(5)]
    assert warnings[:4] == [None] * 4
    assert (
        warnings[4] is not None and "51.2 for 5 steps" in warnings[4] and "ranking.miner: all" in warnings[4]
    )


def test_every_few_steps_alone_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "WINDOW", 3)
    detector = CollapseDetector(EQUAL_ANSWERS)
    assert [step for step in range(11) if detector.is_due(step)] == [0, 5, 10]
    warnings = [detector.update(51.2, 51.2) for _ in range(3)]
    assert warnings[:2] == [None] * 2
    assert warnings[2] is not None and "15" in warnings[2]


def test_tasks_name_what_collapse_means_for_them() -> None:
    assert (RetrievalTask.collapse, AnsweringTask.collapse) == (EQUAL_EMBEDDINGS, EQUAL_ANSWERS)
