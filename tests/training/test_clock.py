"""The clock of an epoch."""

from __future__ import annotations

import pytest

from openvse.training import trainer as module
from openvse.training.trainer import EpochClock


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
