"""Many cases in one test: it names every case that fails, as a test for each would."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Failures(dict[str, str]):
    """The error of each failed case, by the case. The fixture ``failures`` fails a test that has one."""

    @contextmanager
    def of(self, *case: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self[", ".join(map(str, case))] = f"line {frame.lineno}: {type(error).__name__}: {error}"

    def __str__(self) -> str:
        return "\n".join(f"{case}: {error}" for case, error in self.items())
