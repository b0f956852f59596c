"""Collapse is noticed once the loss has stayed at the value of a collapsed model."""

from __future__ import annotations

from openvse.retrieval.training import RetrievalTask
from openvse.training.collapse import EQUAL_ANSWERS, EQUAL_EMBEDDINGS, CollapseDetector
from openvse.vqa.training import AnsweringTask


def test_collapse_needs_a_whole_window() -> None:
    detector = CollapseDetector(EQUAL_EMBEDDINGS, every=1, window=5, tolerance=0.02)
    assert [detector.update(step, 51.0, lambda: 51.2) for step in range(4)] == [None] * 4
    assert detector.update(4, 20.0, lambda: 51.2) is None  # one step away from it begins the window anew
    warnings = [detector.update(step, 51.9, lambda: 51.2) for step in range(5, 10)]
    assert warnings[:4] == [None] * 4
    assert (
        warnings[4] is not None and "51.2 for 5 steps" in warnings[4] and "ranking.miner: all" in warnings[4]
    )


def test_the_loss_at_collapse_is_computed_every_few_steps_alone() -> None:
    computed = []

    def at_collapse() -> float:
        computed.append(len(computed))
        return 51.2

    detector = CollapseDetector(EQUAL_ANSWERS, every=5, window=3)
    warnings = [detector.update(step, 51.2, at_collapse) for step in range(11)]
    assert computed == [0, 1, 2]
    assert warnings[:10] == [None] * 10
    assert warnings[10] is not None and "15" in warnings[10]


def test_tasks_name_what_collapse_means_for_them() -> None:
    assert (RetrievalTask.collapse, AnsweringTask.collapse) == (EQUAL_EMBEDDINGS, EQUAL_ANSWERS)
