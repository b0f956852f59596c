"""A device `cuda` for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.device.emulated_device import Waits, emulated_device


@pytest.fixture
def waits() -> Iterator[Waits]:
    """Emulate a device, and count what waits for it."""
    with emulated_device() as counting:
        yield counting
