"""The learning rate at each step: phases and warm-up."""

from __future__ import annotations

import pytest

from openvse.specs import OptimizerSpec, PhaseSpec
from openvse.training.schedule import Schedule


def test_learning_rate_of_vse_infinity() -> None:
    phases = [
        PhaseSpec(epochs=1),
        PhaseSpec(epochs=14, warmup_epochs=1),
        PhaseSpec(epochs=10, learning_rate=5e-5),
    ]
    schedule = Schedule(OptimizerSpec(learning_rate=5e-4), phases, steps_per_epoch=10)
    assert schedule.num_epochs == 25
    assert [schedule.phase_index(epoch) for epoch in (0, 1, 14, 15, 24)] == [0, 1, 1, 2, 2]
    assert schedule.learning_rate(0, 3) == 5e-4
    warmup = [schedule.learning_rate(1, step) for step in range(10)]
    assert warmup == pytest.approx([5e-4 * (step + 1) / 10 for step in range(10)])
    assert schedule.learning_rate(2, 0) == 5e-4
    assert schedule.learning_rate(15, 0) == 5e-5
    with pytest.raises(IndexError):
        schedule.learning_rate(25, 0)


def test_warmup_may_last_part_of_an_epoch() -> None:
    schedule = Schedule(OptimizerSpec(learning_rate=1.0), [PhaseSpec(epochs=2, warmup_epochs=0.5)], 10)
    assert [schedule.learning_rate(0, step) for step in (0, 4, 5)] == pytest.approx([0.2, 1.0, 1.0])
